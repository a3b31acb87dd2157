#include "stream/dlpack.hpp"
#include "stream/runtime_state.hpp"
#include "streaming.hpp"

#include <headrace/coro/blocking.hpp>
#include <headrace/device/cuda_device.hpp>
#include <headrace/stream/copy_to_host.hpp>

#include <cuda/fake_cuda.hpp>
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

// A child of a process with threads may not start threads under TSan.
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define HEADRACE_NO_FORK 1
#endif
#endif

namespace headrace {
namespace {

using test::checkpoint;
using test::equal_tensors;
using test::failure_of;
using test::fake_cuda;
using test::small_model;
using test::temporary_directory;
using test::wanted_tensor;

/// A model in a directory, and a runtime of its own: what that has left of CUDA when it has gone is
/// a leak.
struct opened_model {
  temporary_directory place;
  checkpoint expected;
  std::unique_ptr<runtime> engine;
  std::optional<model> opened;

  explicit opened_model(checkpoint wanted, runtime_options given = {.threads = 2},
                        open_options how = {})
      : expected(std::move(wanted)), engine(std::make_unique<runtime>(given)) {
    place.write(expected);
    opened = test::run(open(*engine, place.path(), how));
  }

  void close() {
    opened.reset();
    engine.reset();
  }
};

/// What the device holds at the addresses of a tensor.
std::string device_text(const fake_cuda& fake, const tensor& from) {
  const auto bytes = from.bytes();
  if (bytes.empty()) return {};
  const auto* const there = fake.host_address(reinterpret_cast<std::uintptr_t>(bytes.data()));
  REQUIRE(there != nullptr);
  return {reinterpret_cast<const char*>(there), bytes.size()};
}

bool is_on_device(const fake_cuda& fake, const tensor& from, const checkpoint& expected,
                  device where = cuda(0)) {
  const wanted_tensor* const wanted = expected.find(from.name());
  return wanted != nullptr && from.dtype() == wanted->dtype && from.device() == where &&
         std::vector<std::uint64_t>(from.shape().begin(), from.shape().end()) == wanted->shape &&
         device_text(fake, from) == test::content_of(wanted->name, wanted->size());
}

struct arrived {
  std::vector<std::string> names;
  bool right = true;
};

task<arrived> drain(async_generator<tensor>* tensors, const fake_cuda* fake,
                    const checkpoint* expected, device where) {
  arrived all;
  while (auto* t = co_await tensors->next()) {
    all.names.emplace_back(t->name());
    if (!is_on_device(*fake, *t, *expected, where)) all.right = false;
  }
  co_await tensors->close();
  co_return all;
}

arrived stream_all(const fake_cuda& fake, const model& from, const checkpoint& expected,
                   stream_options options = {.device = cuda(0)}) {
  const device where = options.device;
  auto tensors = from.stream(std::move(options));
  return test::run(drain(&tensors, &fake, &expected, where));
}

void check_clean(const fake_cuda& fake) {
  CHECK(fake.settle());
  CHECK(fake.violations() == "");
  CHECK(fake.leaks() == "");
}

task<std::vector<tensor>> keep(async_generator<tensor>* tensors) {
  std::vector<tensor> kept;
  while (auto* t = co_await tensors->next()) kept.push_back(std::move(*t));
  co_await tensors->close();
  co_return kept;
}

TEST_SUITE("unit") {
  TEST_CASE(
      "every tensor arrives on the device, in both orders, however streams overtake each other") {
    for (const char* const settings :
         {"", "delay_us=300 seed=1", "delay_us=2000 seed=2", "copy_gbps=1 seed=3", "pools=0"}) {
      CAPTURE(settings);
      const fake_cuda fake(settings);
      opened_model here(small_model());
      for (const auto order : {delivery::completion, delivery::requested}) {
        const auto all =
            stream_all(fake, *here.opened, here.expected, {.device = cuda(0), .order = order});
        CHECK(all.right);
        CHECK(all.names.size() == here.expected.tensors());
      }
      const copy_statistics copies = here.engine->copies();
      CHECK(copies.bytes == 2 * here.expected.bytes());
      CHECK(copies.batches > 0);
      CHECK(copies.wake_ups <= copies.batches);
      here.close();
      check_clean(fake);
    }
  }

  TEST_CASE("slices arrive on the device as the naive ones") {
    const fake_cuda fake;
    opened_model here(small_model());
    const auto& embed = *here.expected.find("embed.weight");
    REQUIRE(embed.shape.size() == 2);
    const std::uint64_t columns = embed.shape[1];
    const std::uint64_t element = bits(embed.dtype) / 8;
    auto tensors =
        here.opened->stream({.device = cuda(0), .tensors = {{"embed.weight", {{3, 9}, {5, 17}}}}});
    auto* const t = test::run(tensors.next());
    REQUIRE(t != nullptr);
    const std::string whole = test::content_of(embed.name, embed.size());
    std::string wanted;
    for (std::uint64_t row = 3; row < 9; ++row)
      wanted += whole.substr((row * columns + 5) * element, 12 * element);
    CHECK(device_text(fake, *t) == wanted);
    test::run(tensors.close());
    here.close();
    check_clean(fake);
  }

  TEST_CASE("one slot, smaller than the tensors and the chunks, is enough") {
    const fake_cuda fake("delay_us=200");
    opened_model here(equal_tensors(6, 1'000'000),
                      {.threads = 2, .staging = {.slots = 1, .slot_size = 64_KiB}});
    const auto all = stream_all(fake, *here.opened, here.expected);
    CHECK(all.right);
    CHECK(all.names.size() == 6);
    CHECK(fake.count("peak_pinned_bytes") == 64_KiB);
    here.close();
    check_clean(fake);
  }

  TEST_CASE("no more is pinned than the slots, and no more reserved than the limit") {
    // Without pools, whose memory is freed in the order of a stream: some time after the drop.
    const fake_cuda fake("copy_gbps=2 pools=0");
    opened_model here(equal_tensors(64, 1'000'000),
                      {.threads = 2, .staging = {.slots = 3, .slot_size = 256_KiB}},
                      {.chunk_size = 256_KiB});
    const auto all =
        stream_all(fake, *here.opened, here.expected, {.device = cuda(0), .memory_limit = 4_MiB});
    CHECK(all.right);
    CHECK(fake.count("peak_pinned_bytes") <= 3 * 256_KiB);
    CHECK(fake.count("peak_device_bytes") <= 4_MiB);
    here.close();
    check_clean(fake);
  }

  TEST_CASE("tensors outlive the stream, the model and the runtime, and go as DLPack") {
    const fake_cuda fake("devices=2");
    opened_model here(small_model());
    auto tensors = here.opened->stream({.device = cuda(1)});
    std::vector<tensor> kept = test::run(keep(&tensors));
    here.close();
    REQUIRE(kept.size() == here.expected.tensors());
    for (const tensor& one : kept) CHECK(is_on_device(fake, one, here.expected, cuda(1)));
    const auto large =
        std::ranges::find_if(kept, [](const tensor& one) { return !one.bytes().empty(); });
    const auto* const address = large->bytes().data();
    auto* const exported = std::move(*large).to_dlpack();
    CHECK(exported->dl_tensor.device.device_type == dlpack::device_cuda);
    CHECK(exported->dl_tensor.device.device_id == 1);
    CHECK(exported->dl_tensor.data == address);
    std::thread([&] { kept.clear(); }).join();
    exported->deleter(exported);
    check_clean(fake);
  }

  TEST_CASE("the bytes of a device are copied to the host where that is asked for") {
    const fake_cuda fake;
    opened_model here(small_model());
    auto tensors = here.opened->stream({.device = cuda(0)});
    while (auto* const t = test::run(tensors.next())) {
      std::vector<std::byte> bytes(t->bytes().size());
      test::run(copy_to_host(*here.engine, *t, bytes));
      CHECK(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()) ==
            device_text(fake, *t));
    }
    here.close();
    check_clean(fake);
  }

  TEST_CASE("streams to several devices and to the host run at once") {
    const fake_cuda fake("devices=3 delay_us=200");
    opened_model here(small_model());
    std::vector<std::thread> consumers;
    std::atomic<unsigned> right{0};
    for (unsigned number = 0; number < 6; ++number) {
      consumers.emplace_back([&, number] {
        const auto all =
            stream_all(fake, *here.opened, here.expected, {.device = cuda(number % 3)});
        if (all.right && all.names.size() == here.expected.tensors()) ++right;
      });
    }
    CHECK(test::stream_all(*here.opened, here.expected).right);
    for (auto& consumer : consumers) consumer.join();
    CHECK(right == 6);
    here.close();
    check_clean(fake);
  }

  TEST_CASE("a consumer's stream that is none of the device's is refused") {
    const fake_cuda fake("delay_us=500");
    opened_model here(small_model());
    // The first stream opens the device, so that there is a context to make a stream in.
    CHECK(stream_all(fake, *here.opened, here.expected).right);
    const auto device = cuda_device::open(0);
    REQUIRE(device);
    const auto check = (*device)->check(reinterpret_cast<cuda_stream>(0x1234));
    REQUIRE(!check);
    CHECK(check.error().kind() == errc::invalid_request);
    auto tensors = here.opened->stream(
        {.device = cuda(0), .consumer_stream = reinterpret_cast<cuda_stream>(0x1234)});
    const auto failed = failure_of([&] { static_cast<void>(test::run(tensors.next())); });
    REQUIRE(failed);
    CHECK(failed->kind() == errc::invalid_request);
  }
}

TEST_SUITE("fault") {
  TEST_CASE("a device that is not there is an error that says how many there are") {
    const fake_cuda fake("devices=2");
    opened_model here(small_model());
    auto tensors = here.opened->stream({.device = cuda(2)});
    const auto failed = failure_of([&] { static_cast<void>(test::run(tensors.next())); });
    REQUIRE(failed);
    CHECK(failed->kind() == errc::invalid_request);
    CHECK(failed->reason().find("2") != std::string::npos);
    here.close();
    check_clean(fake);
  }

  TEST_CASE("a device without memory ends the stream, and what was delivered stays valid") {
    for (const char* const settings : {"memory=3M", "memory=3M pools=0"}) {
      const fake_cuda fake(settings);
      opened_model here(equal_tensors(8, 1'000'000));
      auto tensors = here.opened->stream({.device = cuda(0)});
      std::vector<tensor> kept;
      const auto failed = failure_of([&] {
        while (auto* const t = test::run(tensors.next())) kept.push_back(std::move(*t));
      });
      REQUIRE(failed);
      CHECK(failed->kind() == errc::out_of_memory);
      CHECK(failed->reason().find("for tensor \"t100") != std::string::npos);
      CHECK(failed->reason().find("of 976.6 KiB") != std::string::npos);
      for (const tensor& one : kept) CHECK(is_on_device(fake, one, here.expected));
      kept.clear();
      // There is room again.
      const auto rest = stream_all(fake, *here.opened, here.expected,
                                   {.device = cuda(0), .tensors = {{"t1007"}}});
      CHECK(rest.right);
      here.close();
      check_clean(fake);
    }
  }

  TEST_CASE("fewer slots than asked for do; none at all is an error that says what to lower") {
    {
      const fake_cuda fake("pinned=600K");
      opened_model here(equal_tensors(40, 300'000),
                        {.threads = 2, .staging = {.slots = 8, .slot_size = 256_KiB}});
      CHECK(stream_all(fake, *here.opened, here.expected).right);
      here.close();
      check_clean(fake);
    }
    const fake_cuda fake("pinned=1K");
    opened_model here(small_model());
    auto tensors = here.opened->stream({.device = cuda(0)});
    const auto failed =
        failure_of([&] { test::run(drain(&tensors, &fake, &here.expected, cuda(0))); });
    REQUIRE(failed);
    CHECK(failed->kind() == errc::out_of_memory);
    CHECK(failed->reason().find("--staging-slot") != std::string::npos);
    here.close();
    check_clean(fake);
  }

  TEST_CASE(
      "a copy that loses the device ends the stream with an error, and later streams as well") {
    for (const unsigned nth : {1u, 3u, 20u}) {
      CAPTURE(nth);
      const fake_cuda fake("copy_gbps=1 delay_us=100 fail_copy=" + std::to_string(nth) + "=700");
      opened_model here(equal_tensors(40, 300'000),
                        {.threads = 2, .staging = {.slots = 4, .slot_size = 256_KiB}});
      for (int again = 0; again < 2; ++again) {
        auto tensors = here.opened->stream({.device = cuda(0)});
        const auto failed =
            failure_of([&] { test::run(drain(&tensors, &fake, &here.expected, cuda(0))); });
        REQUIRE(failed);
        CHECK(failed->kind() == errc::unavailable);
      }
      // The host does not care.
      CHECK(test::stream_all(*here.opened, here.expected).right);
      here.close();
      CHECK(fake.violations() == "");
    }
  }

  TEST_CASE(
      "a call that fails, whichever it is, ends the stream with an error or does not matter") {
    const char* const calls[] = {
        "cuInit",           "cuDeviceGetCount",     "cuDeviceGet",     "cuDevicePrimaryCtxRetain",
        "cuStreamCreate",   "cuEventCreate",        "cuEventRecord",   "cuStreamWaitEvent",
        "cuLaunchHostFunc", "cuMemHostRegister_v2", "cuMemPoolCreate", "cuMemAllocFromPoolAsync",
        "cuMemFreeAsync",   "cuMemcpyHtoDAsync_v2", "cuEventQuery"};
    for (const char* const call : calls) {
      for (const unsigned nth : {1u, 2u, 5u}) {
        CAPTURE(call);
        CAPTURE(nth);
        const fake_cuda fake("delay_us=50 fail=" + std::string(call) + ":" + std::to_string(nth) +
                             "=205");
        opened_model here(equal_tensors(12, 300'000),
                          {.threads = 2, .staging = {.slots = 4, .slot_size = 256_KiB}});
        auto tensors = here.opened->stream({.device = cuda(0)});
        std::optional<arrived> all;
        const auto failed =
            failure_of([&] { all = test::run(drain(&tensors, &fake, &here.expected, cuda(0))); });
        if (failed) {
          CHECK(failed->kind() != errc::timeout);
          CHECK(failed->kind() != errc::cancelled);
        } else {
          CHECK(all->right);
          CHECK(all->names.size() == 12);
        }
        // Once is not for ever.
        CHECK(stream_all(fake, *here.opened, here.expected).right);
        here.close();
        CHECK(fake.settle());
        CHECK(fake.violations() == "");
      }
    }
  }

  TEST_CASE("a stream to a device can be dropped at any tensor, and the runtime destroyed") {
    for (std::size_t count = 0; count < 40; count += 3) {
      CAPTURE(count);
      const fake_cuda fake("delay_us=500 copy_gbps=2 seed=" + std::to_string(count));
      opened_model here(equal_tensors(40, 200'000),
                        {.threads = 2, .staging = {.slots = 4, .slot_size = 256_KiB}});
      {
        auto tensors = here.opened->stream({.device = cuda(0), .memory_limit = 16_MiB});
        for (std::size_t at = 0; at < count; ++at) REQUIRE(test::run(tensors.next()) != nullptr);
        if (count % 2 == 0) test::run(tensors.close());
        if (count % 5 == 0) here.close();
      }
      here.close();
      check_clean(fake);
    }
  }

#ifndef HEADRACE_NO_FORK
  TEST_CASE("a child of a process that used CUDA is told to be spawned, and streams to the host") {
    const fake_cuda fake;
    opened_model here(small_model());
    CHECK(stream_all(fake, *here.opened, here.expected).right);
    const pid_t child = ::fork();
    if (child == 0) {
      int status = 1;
      try {
        auto tensors = here.opened->stream({.device = cuda(0)});
        const auto failed = failure_of([&] { static_cast<void>(test::run(tensors.next())); });
        const bool told = failed && failed->kind() == errc::unsupported &&
                          failed->reason().find("spawn") != std::string::npos;
        const bool streamed = test::stream_all(*here.opened, here.expected).right;
        status = told && streamed ? 0 : 2;
      } catch (...) {
        status = 3;
      }
      ::_exit(status);
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 0);
    CHECK(stream_all(fake, *here.opened, here.expected).right);
    here.close();
    check_clean(fake);
  }
#endif
}

}  // namespace
}  // namespace headrace
