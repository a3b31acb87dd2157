#include "stream/dlpack.hpp"
#include "stream/runtime_state.hpp"
#include "streaming.hpp"

#include <headrace/device/allocator.hpp>
#include <headrace/stream/copy_to_host.hpp>

#include <doctest/doctest.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace headrace {
namespace {

using test::checkpoint;
using test::equal_tensors;
using test::failure_of;
using test::small_model;
using test::temporary_directory;

/// Host memory that counts what is out, and that can be told to fail.
class counting_allocator final : public allocator {
 public:
  task<result<allocated_batch>> allocate(device where, std::vector<std::size_t> sizes) override {
    ++calls;
    CHECK(where == cpu());
    if (throws) throw std::runtime_error("the allocator is out of order");
    std::size_t wanted = 0;
    for (const std::size_t size : sizes) wanted += size;
    if (live + wanted > limit)
      co_return failure{error(errc::out_of_memory, "the limit of the test was reached")};
    if (hops) {
      auto elsewhere = helpers.run([] { return std::this_thread::get_id(); });
      static_cast<void>(co_await elsewhere);
    }
    allocated_batch batch;
    for (const std::size_t size : sizes) {
      auto* const data = static_cast<std::byte*>(std::aligned_alloc(64, (size + 63) / 64 * 64));
      live += size;
      most = std::max<std::size_t>(most, live);
      batch.blocks.emplace_back(data, size, &give_back, this);
    }
    if (forgets) batch.blocks.pop_back();
    co_return batch;
  }

  std::atomic<std::size_t> live{0};
  std::atomic<std::size_t> most{0};
  std::atomic<unsigned> calls{0};
  std::size_t limit = SIZE_MAX;
  bool throws = false;
  bool forgets = false;
  bool hops = false;
  blocking_pool helpers{1};

 private:
  static void give_back(void* owner, std::byte* data, std::size_t size) noexcept {
    static_cast<counting_allocator*>(owner)->live -= size;
    std::free(data);
  }
};

struct opened_model {
  temporary_directory place;
  checkpoint expected;
  runtime engine{runtime_options{.threads = 2}};
  model opened;

  explicit opened_model(checkpoint wanted, open_options how = {})
      : expected(std::move(wanted)),
        opened((place.write(expected), test::run(open(engine, place.path(), how)))) {}
};

task<std::vector<tensor>> keep(async_generator<tensor>* tensors) {
  std::vector<tensor> kept;
  while (auto* t = co_await tensors->next()) kept.push_back(std::move(*t));
  co_await tensors->close();
  co_return kept;
}

TEST_SUITE("unit") {
  TEST_CASE("tensors land in the memory of an allocator, in both orders") {
    const opened_model here(small_model());
    for (const auto order : {delivery::completion, delivery::requested}) {
      for (const bool hops : {false, true}) {
        const auto memory = std::make_shared<counting_allocator>();
        memory->hops = hops;
        const auto all =
            test::stream_all(here.opened, here.expected, {.order = order, .destination = memory});
        CHECK(all.right);
        CHECK(all.bytes == here.expected.bytes());
        CHECK(all.names.size() == here.expected.tensors());
        CHECK(memory->live == 0);
        CHECK(memory->calls > 0);
      }
    }
  }

  TEST_CASE("a tensor that is kept keeps its memory, and gives it back when dropped") {
    const opened_model here(small_model());
    const auto memory = std::make_shared<counting_allocator>();
    auto tensors = here.opened.stream({.destination = memory});
    std::vector<tensor> kept = test::run(keep(&tensors));
    CHECK(memory->live == here.expected.bytes());
    for (const tensor& one : kept) CHECK(test::is(one, *here.expected.find(one.name())));
    auto* const exported = std::move(kept.front()).to_dlpack();
    CHECK(exported->dl_tensor.device.device_type == dlpack::device_cpu);
    kept.clear();
    exported->deleter(exported);
    CHECK(memory->live == 0);
  }

  TEST_CASE("the limit counts an allocator's bytes, until they are the consumer's own") {
    const opened_model here(equal_tensors(64, 1'000'000), {.chunk_size = 1_MiB});
    const auto memory = std::make_shared<counting_allocator>();
    const auto all = test::stream_all(here.opened, here.expected,
                                      {.memory_limit = 4_MiB, .destination = memory});
    CHECK(all.right);
    CHECK(memory->most <= 4_MiB);
    // What is moved out is no longer the stream's.
    auto tensors = here.opened.stream({.memory_limit = 4_MiB, .destination = memory});
    const std::vector<tensor> kept = test::run(keep(&tensors));
    CHECK(kept.size() == 64);
    CHECK(memory->live == 64'000'000);
  }

  TEST_CASE("a tensor larger than the limit is placed alone") {
    checkpoint wanted = equal_tensors(8, 300'000);
    wanted.files["model.safetensors"].push_back({"large", dtype::u8, {3'000'000}});
    wanted.files["model.safetensors"].push_back({"last", dtype::u8, {300'000}});
    const opened_model here(wanted, {.chunk_size = 256_KiB});
    const auto memory = std::make_shared<counting_allocator>();
    const auto all = test::stream_all(here.opened, here.expected,
                                      {.memory_limit = 1_MiB, .destination = memory});
    CHECK(all.right);
    CHECK(all.names.size() == 10);
    CHECK(memory->most <= 3'000'000);
  }

  TEST_CASE(
      "an allocator without memory ends the stream with the name and the size of the tensor") {
    const opened_model here(equal_tensors(8, 1'000'000));
    const auto memory = std::make_shared<counting_allocator>();
    memory->limit = 3'500'000;
    auto tensors = here.opened.stream({.destination = memory});
    std::vector<tensor> kept;
    const auto failed = failure_of([&] {
      for (;;) {
        auto* const t = test::run(tensors.next());
        if (t == nullptr) break;
        kept.push_back(std::move(*t));
      }
    });
    REQUIRE(failed);
    CHECK(failed->kind() == errc::out_of_memory);
    CHECK(failed->reason().starts_with("no memory on cpu for tensor \"t1003\" of 976.6 KiB: "));
    CHECK(failed->reason().find("the limit of the test was reached") != std::string::npos);
    for (const tensor& one : kept) CHECK(test::is(one, *here.expected.find(one.name())));
    kept.clear();
    test::run(tensors.close());
    CHECK(memory->live == 0);
  }

  TEST_CASE("an allocator that throws, or forgets a block, ends the stream with an error") {
    const opened_model here(small_model());
    const auto memory = std::make_shared<counting_allocator>();
    for (const bool throws : {true, false}) {
      memory->throws = throws;
      memory->forgets = !throws;
      auto tensors = here.opened.stream({.destination = memory});
      // The tensor without bytes needs no memory and may come first.
      const auto failed = failure_of([&] { test::run(test::drain(&tensors, &here.expected)); });
      REQUIRE(failed);
      CHECK(failed->kind() == errc::internal);
      CHECK(memory->live == 0);
    }
  }

  TEST_CASE("a stream into an allocator's memory can be dropped at any tensor") {
    const opened_model here(small_model());
    for (std::size_t count = 0; count < here.expected.tensors(); count += 5) {
      const auto memory = std::make_shared<counting_allocator>();
      memory->hops = count % 2 == 0;
      {
        auto tensors = here.opened.stream({.destination = memory});
        for (std::size_t at = 0; at < count; ++at) REQUIRE(test::run(tensors.next()) != nullptr);
        if (count % 3 == 0) test::run(tensors.close());
      }
      const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
      while (memory->live != 0 && std::chrono::steady_clock::now() < limit)
        std::this_thread::yield();
      CHECK(memory->live == 0);
      // What the abandoned stream left is freed by the runtime; the allocator has to see it.
      while (memory.use_count() > 1 && std::chrono::steady_clock::now() < limit)
        std::this_thread::yield();
      CHECK(memory.use_count() == 1);
    }
  }

  TEST_CASE("bytes of the host are copied to the host as well") {
    const opened_model here(small_model());
    runtime engine({.threads = 1});
    auto tensors = here.opened.stream();
    auto* const t = test::run(tensors.next());
    REQUIRE(t != nullptr);
    std::vector<std::byte> bytes(t->bytes().size());
    test::run(copy_to_host(engine, *t, bytes));
    CHECK(std::ranges::equal(bytes, t->bytes()));
    bytes.resize(bytes.size() + 1);
    const auto failed = failure_of([&] { test::run(copy_to_host(engine, *t, bytes)); });
    REQUIRE(failed);
    CHECK(failed->kind() == errc::invalid_request);
    test::run(tensors.close());
  }

  TEST_CASE("staging memory that cannot be is refused when the runtime is made") {
    for (const staging_options wrong :
         {staging_options{.slots = 0}, staging_options{.slot_size = 4096},
          staging_options{.slot_size = 1_MiB + 1}}) {
      const auto failed = failure_of([&] { const runtime engine({.staging = wrong}); });
      REQUIRE(failed);
      CHECK(failed->kind() == errc::invalid_request);
    }
  }
}

}  // namespace
}  // namespace headrace
