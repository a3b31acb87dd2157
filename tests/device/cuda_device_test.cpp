#include <headrace/device/cuda_device.hpp>

#include "fake_machine.hpp"

#include <headrace/io/blocking_pool.hpp>

#include <doctest/doctest.h>
#include <support/test_loop.hpp>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <string>
#include <vector>

using namespace headrace;
using test::driver;
using test::fake_machine;

namespace {

bool says(const error& failed, std::string_view text) {
  return failed.message().find(text) != std::string::npos;
}

task<result<allocated_batch>> allocate(std::shared_ptr<allocator> from, device where,
                                       std::vector<std::size_t> sizes) {
  co_return co_await from->allocate(where, std::move(sizes));
}

/// A context that is current on this thread, of a framework for instance.
class current_context {
 public:
  explicit current_context(int device) : device_(device) {
    CUcontext made = nullptr;
    REQUIRE(driver().cuInit(0) == CUDA_SUCCESS);
    REQUIRE(driver().cuDevicePrimaryCtxRetain(&made, device) == CUDA_SUCCESS);
    REQUIRE(driver().cuCtxPushCurrent(made) == CUDA_SUCCESS);
    handle = made;
  }
  current_context(const current_context&) = delete;
  current_context& operator=(const current_context&) = delete;
  ~current_context() {
    CUcontext popped = nullptr;
    CHECK(driver().cuCtxPopCurrent(&popped) == CUDA_SUCCESS);
    CHECK(popped == handle);
    CHECK(driver().cuDevicePrimaryCtxRelease(device_) == CUDA_SUCCESS);
  }

  CUcontext handle = nullptr;

 private:
  int device_;
};

}  // namespace

TEST_SUITE("unit") {
  TEST_CASE("whoever opens a device that is open gets the same one") {
    const fake_machine machine("devices=2");
    const auto first = cuda_device::open(0).value();
    CHECK(cuda_device::open(0).value() == first);
    const auto second = cuda_device::open(1).value();
    CHECK(second != first);
    CHECK(first->index() == 0);
    CHECK(second->index() == 1);
    CHECK_FALSE(first->name().empty());
    CHECK(machine.count("references") == 2);
  }

  TEST_CASE("the last one to drop a device gives its context back, and it can be opened again") {
    const fake_machine machine;
    auto opened = cuda_device::open(0).value();
    opened.reset();
    CHECK(machine.count("references") == 0);
    opened = cuda_device::open(0).value();
    CHECK(machine.count("references") == 1);
  }

  TEST_CASE("a device that is not there is an invalid request which says what there is") {
    const fake_machine machine("devices=2");
    const auto opened = cuda_device::open(2);
    REQUIRE_FALSE(opened);
    CHECK(opened.error().kind() == errc::invalid_request);
    CHECK(says(opened.error(), "there is no cuda:2"));
    CHECK(says(opened.error(), "2 CUDA devices, cuda:0 to cuda:1"));
    CHECK(says(opened.error(), "CUDA_VISIBLE_DEVICES"));
  }

  TEST_CASE("a machine without devices says so") {
    const fake_machine machine("devices=0");
    const auto opened = cuda_device::open(0);
    REQUIRE_FALSE(opened);
    CHECK(opened.error().kind() == errc::invalid_request);
    CHECK(says(opened.error(), "no device"));
  }

  TEST_CASE("a driver before CUDA 11.2 is unsupported") {
    const fake_machine machine("driver=11010");
    const auto opened = cuda_device::open(0);
    REQUIRE_FALSE(opened);
    CHECK(opened.error().kind() == errc::unsupported);
    CHECK(says(opened.error(), "CUDA 11.1"));
    CHECK(says(opened.error(), "11.2 or newer"));
  }

  TEST_CASE("each call of opening may fail, and leaves nothing behind") {
    for (const char* const call : {"cuDriverGetVersion", "cuInit", "cuDeviceGetCount",
                                   "cuDeviceGet", "cuDeviceGetName", "cuDevicePrimaryCtxRetain"}) {
      CAPTURE(call);
      const fake_machine machine("fail=" + std::string(call) + ":1+=2");
      const auto opened = cuda_device::open(0);
      REQUIRE_FALSE(opened);
      CHECK(opened.error().kind() == errc::out_of_memory);
      CHECK(says(opened.error(), "CUDA_ERROR_OUT_OF_MEMORY"));
      CHECK(machine.leaks() == "");
    }
  }

  TEST_CASE("what the driver says becomes the kind that fits, with its own name and text") {
    const fake_machine machine;
    const auto kind = [](CUresult code) { return driver().failure(code, "cannot test").kind(); };
    CHECK(kind(CUDA_ERROR_OUT_OF_MEMORY) == errc::out_of_memory);
    CHECK(kind(CUDA_ERROR_NO_DEVICE) == errc::invalid_request);
    CHECK(kind(CUDA_ERROR_INVALID_DEVICE) == errc::invalid_request);
    CHECK(kind(CUDA_ERROR_INVALID_HANDLE) == errc::invalid_request);
    CHECK(kind(CUDA_ERROR_NOT_SUPPORTED) == errc::unsupported);
    CHECK(kind(CUDA_ERROR_NOT_INITIALIZED) == errc::unsupported);
    CHECK(kind(CUDA_ERROR_SYSTEM_NOT_READY) == errc::unavailable);
    for (const CUresult dead :
         {CUDA_ERROR_ECC_UNCORRECTABLE, CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_LAUNCH_FAILED,
          CUDA_ERROR_CONTEXT_IS_DESTROYED, static_cast<CUresult>(226)}) {
      CHECK(kind(dead) == errc::unavailable);
      CHECK(says(driver().failure(dead, "cannot test"), "start the process anew"));
    }
    const error failed = driver().failure(CUDA_ERROR_ILLEGAL_ADDRESS, "cannot copy to cuda:3");
    CHECK(failed.message().starts_with("cannot copy to cuda:3: "));
    CHECK(says(failed, "CUDA_ERROR_ILLEGAL_ADDRESS 700"));
    CHECK(says(driver().failure(static_cast<CUresult>(998), "cannot test"), " 998)"));
  }

  TEST_CASE("a caller's own current context is as it was after every call") {
    const fake_machine machine("devices=2");
    const current_context own(1);
    const auto undisturbed = [&] {
      CUcontext there = nullptr;
      CHECK(driver().cuCtxGetCurrent(&there) == CUDA_SUCCESS);
      return there == own.handle && machine.depth() == 1;
    };

    auto opened = cuda_device::open(0).value();
    CHECK(undisturbed());
    CHECK(opened->check(nullptr).has_value());
    CHECK(undisturbed());
    test::test_loop here;
    auto batch =
        here.run(allocate(opened->memory(here.helpers, nullptr, 0), cuda(0), {64})).value();
    CHECK(undisturbed());
    machine.settle();  // as an engine that follows the allocation waits for it
    std::array<std::byte, 64> read{};
    CHECK(opened->read(read, batch.blocks[0].data()).has_value());
    CHECK(undisturbed());
    batch.blocks.clear();
    CHECK(undisturbed());
    machine.configure("fail=cuStreamCreate:1+=2");
    CHECK_FALSE(opened->read(read, nullptr));
    CHECK(undisturbed());
    opened.reset();
    CHECK(undisturbed());
  }

  TEST_CASE("a capture that another thread has under way is not broken") {
    const fake_machine machine;
    const auto opened = cuda_device::open(0).value();
    machine.capture(nullptr, true);
    test::test_loop here;
    auto batch =
        here.run(allocate(opened->memory(here.helpers, nullptr, 0), cuda(0), {4096})).value();
    machine.settle();
    std::array<std::byte, 4096> read{};
    CHECK(opened->read(read, batch.blocks[0].data()).has_value());
    batch.blocks.clear();
    machine.capture(nullptr, false);

    // And the thread is in the mode that it was in.
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    CHECK(driver().cuThreadExchangeStreamCaptureMode(&mode) == CUDA_SUCCESS);
    CHECK(mode == CU_STREAM_CAPTURE_MODE_GLOBAL);
    CHECK(driver().cuThreadExchangeStreamCaptureMode(&mode) == CUDA_SUCCESS);
  }

  TEST_CASE("a stream is one of the device, in working order, and not being captured") {
    const fake_machine machine("devices=2");
    const auto opened = cuda_device::open(0).value();
    const auto refused = [&](CUstream stream) {
      const auto checked = opened->check(stream);
      return !checked && checked.error().kind() == errc::invalid_request;
    };
    CHECK(opened->check(nullptr).has_value());
    CHECK(opened->check(CU_STREAM_LEGACY).has_value());
    CHECK(refused(CU_STREAM_PER_THREAD));
    {
      const current_context own(0);
      CUstream stream = nullptr;
      REQUIRE(driver().cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
      CHECK(opened->check(stream).has_value());
      machine.capture(stream, true);
      CHECK(refused(stream));
      machine.capture(stream, false);
      CHECK(opened->check(stream).has_value());
      CHECK(driver().cuStreamDestroy(stream) == CUDA_SUCCESS);
      CHECK(refused(stream));
    }
    const current_context other(1);
    CUstream stream = nullptr;
    REQUIRE(driver().cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    CHECK(refused(stream));
    CHECK(driver().cuStreamDestroy(stream) == CUDA_SUCCESS);
  }

  TEST_CASE("reading fails with what the driver says, at each call") {
    const fake_machine machine;
    const auto opened = cuda_device::open(0).value();
    test::test_loop here;
    const auto batch =
        here.run(allocate(opened->memory(here.helpers, nullptr, 0), cuda(0), {512})).value();
    machine.settle();
    std::array<std::byte, 512> read{};
    CHECK(opened->read({}, batch.blocks[0].data()).has_value());
    for (const char* const call :
         {"cuCtxPushCurrent", "cuStreamCreate", "cuMemcpyDtoHAsync", "cuStreamSynchronize"}) {
      CAPTURE(call);
      const auto calls = machine.count(call) + machine.count((call + std::string("_v2")).c_str());
      machine.configure("fail=" + std::string(call) + ":" + std::to_string(calls + 1) + "=802");
      const auto done = opened->read(read, batch.blocks[0].data());
      REQUIRE_FALSE(done);
      CHECK(done.error().kind() == errc::unavailable);
      CHECK(says(done.error(), "cannot read memory of cuda:0"));
      CHECK(opened->read(read, batch.blocks[0].data()).has_value());
    }
  }

  TEST_CASE("a device whose context is dead says so, and is given back all the same") {
    const fake_machine machine;
    auto opened = cuda_device::open(0).value();
    machine.lose(0, CUDA_ERROR_ECC_UNCORRECTABLE);
    std::array<std::byte, 64> read{};
    const auto done = opened->read(read, nullptr);
    REQUIRE_FALSE(done);
    CHECK(done.error().kind() == errc::unavailable);
    CHECK(says(done.error(), "start the process anew"));
  }

  TEST_CASE("a forked child is told to be spawned, and gives nothing back") {
    const fake_machine machine;
    test::test_loop here;
    auto opened = cuda_device::open(0).value();
    auto batch =
        here.run(allocate(opened->memory(here.helpers, nullptr, 0), cuda(0), {512})).value();
    machine.settle();  // so that no thread of the fake holds its mutex
    const pid_t child = ::fork();
    if (child == 0) {
      int status = 0;
      const auto again = cuda_device::open(0);
      if (again || again.error().kind() != errc::unsupported || !says(again.error(), "spawn"))
        status |= 1;
      if (opened->check(nullptr)) status |= 2;
      const auto calls = [&] {
        return machine.count("cuMemFreeAsync") + machine.count("cuDevicePrimaryCtxRelease_v2") +
               machine.count("cuEventDestroy_v2") + machine.count("cuCtxPushCurrent_v2");
      };
      const auto before = calls();
      batch.blocks.clear();
      opened.reset();
      if (calls() != before) status |= 4;
      ::_exit(status);
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    REQUIRE(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 0);
    CHECK(opened->check(nullptr).has_value());
  }
}
