#include <headrace/device/allocator.hpp>

#include "fake_machine.hpp"

#include <headrace/base/sizes.hpp>
#include <headrace/device/cuda_device.hpp>
#include <headrace/io/blocking_pool.hpp>

#include <doctest/doctest.h>
#include <support/test_loop.hpp>

#include <array>
#include <atomic>
#include <cstdint>
#include <set>
#include <string>
#include <thread>
#include <vector>

using namespace headrace;
using test::driver;
using test::fake_machine;
using test::test_loop;

namespace {

task<result<allocated_batch>> allocate(std::shared_ptr<allocator> from, device where,
                                       std::vector<std::size_t> sizes) {
  co_return co_await from->allocate(where, std::move(sizes));
}

/// A stream of the tests' own on a device, with that device current while it lives.
class own_stream {
 public:
  explicit own_stream(int device = 0) : device_(device) {
    CUcontext context = nullptr;
    REQUIRE(driver().cuDevicePrimaryCtxRetain(&context, device) == CUDA_SUCCESS);
    REQUIRE(driver().cuCtxPushCurrent(context) == CUDA_SUCCESS);
    REQUIRE(driver().cuStreamCreate(&handle, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  }
  own_stream(const own_stream&) = delete;
  own_stream& operator=(const own_stream&) = delete;
  ~own_stream() {
    CUcontext context = nullptr;
    CHECK(driver().cuStreamDestroy(handle) == CUDA_SUCCESS);
    CHECK(driver().cuCtxPopCurrent(&context) == CUDA_SUCCESS);
    CHECK(driver().cuDevicePrimaryCtxRelease(device_) == CUDA_SUCCESS);
  }

  /// What is queued from now on waits until `open` is true.
  void wait_for(std::atomic<bool>& open) const {
    REQUIRE(driver().cuLaunchHostFunc(handle, &wait_here, &open) == CUDA_SUCCESS);
  }

  CUstream handle = nullptr;

 private:
  static void wait_here(void* open) {
    while (!static_cast<std::atomic<bool>*>(open)->load()) std::this_thread::yield();
  }

  int device_;
};

}  // namespace

TEST_SUITE("unit") {
  TEST_CASE("a block gives its memory back once, on whatever thread it is dropped") {
    struct counted {
      std::atomic<int> released{0};
      static void release(void* owner, std::byte*, std::size_t) noexcept {
        ++static_cast<counted*>(owner)->released;
      }
    } owner;
    std::byte byte{};
    {
      device_block first(&byte, 1, &counted::release, &owner);
      device_block second(std::move(first));
      CHECK(first.data() == nullptr);  // NOLINT(bugprone-use-after-move): empty by contract
      CHECK(second.data() == &byte);
      std::thread([moved = std::move(second)] {}).join();
      CHECK(owner.released == 1);
      device_block third(&byte, 1, &counted::release, &owner);
      third = device_block(&byte, 1, &counted::release, &owner);
      CHECK(owner.released == 2);
      third.reset();
      third.reset();
    }
    CHECK(owner.released == 3);
  }

  TEST_CASE("a batch is one block for each size, aligned, in the order of a stream") {
    const fake_machine machine("delay_us=200");
    test_loop here;
    const auto device = cuda_device::open(0).value();
    const std::vector<std::size_t> sizes = {1, 64, 4097, 1_MiB};
    auto batch = here.run(allocate(device->memory(here.helpers, nullptr, 0), cuda(0), sizes));
    REQUIRE(batch.has_value());
    CHECK(batch->ordered);
    CHECK(batch->stream != nullptr);
    REQUIRE(batch->blocks.size() == sizes.size());
    std::set<const std::byte*> addresses;
    for (std::size_t at = 0; at < sizes.size(); ++at) {
      CHECK(batch->blocks[at].size() >= sizes[at]);
      CHECK(reinterpret_cast<std::uintptr_t>(batch->blocks[at].data()) % 64 == 0);
      addresses.insert(batch->blocks[at].data());
    }
    CHECK(addresses.size() == sizes.size());
    CHECK(machine.count("allocations") == sizes.size());
    batch->blocks.clear();
    machine.settle();
    CHECK(machine.count("allocations") == 0);
  }

  TEST_CASE("the pool is the device's, and keeps as much as was last said") {
    const fake_machine machine;
    test_loop here;
    const auto device = cuda_device::open(0).value();
    for (unsigned time = 0; time < 3; ++time) {
      const auto batch =
          here.run(allocate(device->memory(here.helpers, nullptr, 1_MiB), cuda(0), {4096}));
      REQUIRE(batch.has_value());
    }
    CHECK(machine.count("cuMemPoolCreate") == 1);
    CHECK(machine.count("pools") == 1);
    CHECK(machine.count("cuMemPoolSetAttribute") >= 1);
  }

  TEST_CASE("without pools memory comes from cuMemAlloc and goes by cuMemFree") {
    const fake_machine machine("pools=0");
    test_loop here;
    const auto device = cuda_device::open(0).value();
    auto batch = here.run(allocate(device->memory(here.helpers, nullptr, 0), cuda(0), {64, 4096}));
    REQUIRE(batch.has_value());
    CHECK_FALSE(batch->ordered);
    CHECK(machine.count("cuMemAlloc_v2") == 2);
    batch->blocks.clear();
    CHECK(machine.count("cuMemFree_v2") == 2);
    CHECK(machine.count("cuMemFreeAsync") == 0);
  }

  TEST_CASE("a failure in the middle gives back what was got, and says how much was wanted") {
    for (const char* const settings : {"memory=64M", "memory=64M pools=0"}) {
      CAPTURE(settings);
      const fake_machine machine(settings);
      test_loop here;
      const auto device = cuda_device::open(0).value();
      const auto memory = device->memory(here.helpers, nullptr, 0);
      const auto batch = here.run(allocate(memory, cuda(0), {16_MiB, 16_MiB, 48_MiB, 4096}));
      REQUIRE_FALSE(batch);
      CHECK(batch.error().kind() == errc::out_of_memory);
      for (const char* const text :
           {"cuda:0", "48.0 MiB", "50331648", "32.0 MiB of its 64.0 MiB", "--memory-limit"}) {
        CAPTURE(batch.error().message());
        CHECK(batch.error().message().find(text) != std::string::npos);
      }
      machine.settle();
      CHECK(machine.count("allocations") == 0);
      CHECK(here.run(allocate(memory, cuda(0), {48_MiB})).has_value());
    }
  }

  TEST_CASE("allocating fails with what the driver says, at each call, and leaves nothing") {
    for (const char* const call :
         {"cuCtxPushCurrent", "cuDeviceGetAttribute", "cuStreamCreate", "cuMemPoolCreate",
          "cuMemPoolSetAttribute", "cuMemAllocFromPoolAsync", "cuEventCreate", "cuEventRecord"}) {
      CAPTURE(call);
      const fake_machine machine;
      test_loop here;
      const auto device = cuda_device::open(0).value();
      machine.configure("fail=" + std::string(call) + ":1+=802");
      const auto memory = device->memory(here.helpers, nullptr, 0);
      const auto batch = here.run(allocate(memory, cuda(0), {64, 64}));
      REQUIRE_FALSE(batch);
      CHECK(batch.error().kind() == errc::unavailable);
      CHECK(batch.error().message().find(" 802)") != std::string::npos);
      machine.configure("fail=");
      CHECK(here.run(allocate(memory, cuda(0), {64})).has_value());
    }
  }

  TEST_CASE("a device that says only when asked that it has no pools is taken at its word") {
    const fake_machine machine("fail=cuMemPoolCreate:1+=801");
    test_loop here;
    const auto device = cuda_device::open(0).value();
    const auto batch =
        here.run(allocate(device->memory(here.helpers, nullptr, 0), cuda(0), {64})).value();
    CHECK_FALSE(batch.ordered);
  }

  TEST_CASE("blocks keep their device, whoever else has dropped it") {
    const fake_machine machine;
    test_loop here;
    auto device = cuda_device::open(0).value();
    auto batch =
        here.run(allocate(device->memory(here.helpers, nullptr, 0), cuda(0), {64, 64})).value();
    device.reset();
    CHECK(machine.count("references") == 1);
    std::thread([&batch] { batch.blocks.clear(); }).join();
    CHECK(machine.count("references") == 0);
  }

  TEST_CASE("a dropped block is given back after what was queued on the stream of its use") {
    const fake_machine machine;
    test_loop here;
    const auto device = cuda_device::open(0).value();
    std::atomic<bool> open = false;
    const own_stream used;
    auto batch =
        here.run(allocate(device->memory(here.helpers, used.handle, 0), cuda(0), {4096})).value();
    machine.settle();
    used.wait_for(open);
    batch.blocks.clear();
    CHECK(machine.count("cuMemFreeAsync") == 1);
    CHECK(machine.count("device_bytes") == 4096);
    open = true;
    machine.settle();
    CHECK(machine.count("device_bytes") == 0);
  }

  TEST_CASE("a block that was never there yet is given back in the order of its allocation") {
    const fake_machine machine;
    test_loop here;
    const auto device = cuda_device::open(0).value();
    const own_stream used;
    const auto memory = device->memory(here.helpers, used.handle, 0);
    const auto first = here.run(allocate(memory, cuda(0), {4096})).value();
    machine.settle();
    machine.hold(first.stream);
    auto second = here.run(allocate(memory, cuda(0), {4096})).value();
    second.blocks.clear();
    CHECK(machine.count("cuMemFreeAsync") == 1);
    REQUIRE(driver().cuStreamSynchronize(used.handle) == CUDA_SUCCESS);
    CHECK(machine.count("device_bytes") == 8192);
    machine.let_go(first.stream);
    machine.settle();
    CHECK(machine.count("device_bytes") == 4096);
  }

  TEST_CASE("memory of another device is refused") {
    const fake_machine machine("devices=2");
    test_loop here;
    const auto device = cuda_device::open(1).value();
    const auto memory = device->memory(here.helpers, nullptr, 0);
    for (const auto where : {cpu(), cuda(0)}) {
      const auto batch = here.run(allocate(memory, where, {64}));
      REQUIRE_FALSE(batch);
      CHECK(batch.error().kind() == errc::invalid_request);
    }
    CHECK(here.run(allocate(memory, cuda(1), {64})).has_value());
  }

  TEST_CASE("blocks of a dead context are dropped without harm") {
    const fake_machine machine;
    test_loop here;
    const auto device = cuda_device::open(0).value();
    auto batch =
        here.run(allocate(device->memory(here.helpers, nullptr, 0), cuda(0), {64, 64})).value();
    machine.lose(0, CUDA_ERROR_ILLEGAL_ADDRESS);
    const auto more = here.run(allocate(device->memory(here.helpers, nullptr, 0), cuda(0), {64}));
    REQUIRE_FALSE(more);
    CHECK(more.error().kind() == errc::unavailable);
    batch.blocks.clear();
  }
}
