#include <headrace/device/staging_pool.hpp>

#include "fake_machine.hpp"

#include <headrace/coro/async_scope.hpp>
#include <headrace/coro/with.hpp>
#include <headrace/device/cuda_device.hpp>

#include <doctest/doctest.h>
#include <support/test_loop.hpp>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

using namespace headrace;
using test::fake_machine;
using test::test_loop;

namespace {

task<result<staging_slot>> acquire(staging_pool* pool) { co_return co_await pool->acquire(); }

/// What those got that asked in turn.
struct asked {
  std::optional<result<staging_slot>> got;
  std::size_t place = 0;
};

task<> ask(staging_pool* pool, asked* by, std::size_t* served) {
  auto got = co_await pool->acquire();
  by->place = (*served)++;
  by->got.emplace(std::move(got));
}

task<> rounds(unsigned count) {
  for (unsigned round = 0; round < count; ++round) co_await sleep_for(std::chrono::nanoseconds(0));
}

/// All slots of a pool of two are out; three more ask, and the two come back, the second last.
task<> served_in_turn(test_loop* here, staging_pool* pool, std::vector<asked>* all) {
  auto first = co_await pool->acquire();
  auto second = co_await pool->acquire();
  std::size_t served = 0;
  async_scope scope;
  for (asked& one : *all) {
    scope.spawn(here->loop, ask(pool, &one, &served));
    co_await rounds(2);
  }
  CHECK(served == 0);
  first->reset();
  second->reset();
  co_await rounds(2);
  CHECK(served == 2);
  // What was given out may not be overtaken by somebody who asks now.
  asked late;
  scope.spawn(here->loop, ask(pool, &late, &served));
  co_await rounds(2);
  CHECK(served == 2);
  (*all)[0].got.reset();
  co_await rounds(2);
  CHECK(served == 3);
  CHECK((*all)[2].got.has_value());
  (*all)[1].got.reset();
  co_await scope.join();
  CHECK(late.place == 3);
}

task<> stopped_while_waiting(test_loop* here, staging_pool* pool) {
  auto only = co_await pool->acquire();
  std::stop_source stopped;
  asked one;
  asked other;
  std::size_t served = 0;
  async_scope scope;
  scope.spawn(here->loop, with_stop(stopped.get_token(), ask(pool, &one, &served)));
  scope.spawn(here->loop, ask(pool, &other, &served));
  co_await rounds(2);
  std::thread([&stopped] { stopped.request_stop(); }).join();
  co_await rounds(2);
  REQUIRE(one.got.has_value());
  CHECK(one.got->error().kind() == errc::cancelled);
  CHECK_FALSE(other.got.has_value());
  only->reset();
  co_await scope.join();
  CHECK(other.got->has_value());
}

/// A stop and a slot that comes back meet: whoever wins, no slot is lost.
task<> stop_meets_slot(test_loop* here, staging_pool* pool, unsigned times) {
  for (unsigned time = 0; time < times; ++time) {
    auto only = co_await pool->acquire();
    std::stop_source stopped;
    asked one;
    std::size_t served = 0;
    async_scope scope;
    scope.spawn(here->loop, with_stop(stopped.get_token(), ask(pool, &one, &served)));
    co_await rounds(2);
    if (time % 2 == 0) {
      // The stop has been taken, and the slot comes before the coroutine knows.
      stopped.request_stop();
      only->reset();
    } else {
      std::thread stopping([&stopped] { stopped.request_stop(); });
      only->reset();
      stopping.join();
    }
    co_await scope.join();
    one.got.reset();
  }
  auto last = co_await pool->acquire();
  CHECK(last.has_value());
}

/// Keeps a helper thread until `open` is true.
struct busy_helper final : work_item {
  busy_helper() noexcept : work_item(&wait) {}
  static void wait(work_item& item) noexcept {
    auto& self = static_cast<busy_helper&>(item);
    while (!self.open.load()) std::this_thread::yield();
    self.over.store(true);
  }
  std::atomic<bool> open{false};
  std::atomic<bool> over{false};
};

/// A slot comes back while one more is being pinned, which then fails.
task<> back_before_failing(test_loop* here, staging_pool* pool, asked* second) {
  auto first = co_await pool->acquire();
  busy_helper busy;
  here->helpers.submit(busy);
  std::size_t served = 0;
  async_scope scope;
  scope.spawn(here->loop, ask(pool, second, &served));
  co_await rounds(2);
  first->reset();
  busy.open.store(true);
  co_await scope.join();
  while (!busy.over.load()) co_await rounds(1);
}

task<> ask_all(test_loop* here, staging_pool* pool, std::vector<asked>* all) {
  async_scope scope;
  std::size_t served = 0;
  for (asked& one : *all) scope.spawn(here->loop, ask(pool, &one, &served));
  co_await scope.join();
}

/// Takes and gives back, as a worker of a stream does.
task<> take_turns(staging_pool* pool, unsigned times) {
  for (unsigned time = 0; time < times; ++time) {
    auto slot = co_await pool->acquire();
    REQUIRE(slot.has_value());
    const auto bytes = slot->bytes();
    std::memset(bytes.data(), static_cast<int>(time), bytes.size());
    co_await rounds(1);
  }
}

task<> many_take_turns(test_loop* here, staging_pool* pool, unsigned workers) {
  async_scope scope;
  for (unsigned worker = 0; worker < workers; ++worker)
    scope.spawn(here->loop, take_turns(pool, 20));
  co_await scope.join();
}

}  // namespace

TEST_SUITE("unit") {
  TEST_CASE("a slot is page-aligned memory of the size that was asked for") {
    test_loop here;
    for (const std::size_t size : {64_KiB, 2_MiB, 2_MiB + 4096, 8_MiB}) {
      staging_pool pool({.slots = 2, .slot_size = size}, nullptr, here.helpers);
      auto slot = here.run(acquire(&pool)).value();
      REQUIRE(slot.bytes().size() == size);
      CHECK(reinterpret_cast<std::uintptr_t>(slot.bytes().data()) % 4096 == 0);
      std::memset(slot.bytes().data(), 1, size);
      CHECK(pool.pinned() == size);
    }
  }

  TEST_CASE("slots are pinned one by one, as they are needed, and kept for later") {
    const fake_machine machine;
    test_loop here;
    const auto device = cuda_device::open(0).value();
    {
      staging_pool pool({.slots = 3, .slot_size = 64_KiB}, device, here.helpers);
      CHECK(pool.pinned() == 0);
      auto first = here.run(acquire(&pool)).value();
      CHECK(machine.count("pinned_bytes") == 64_KiB);
      auto second = here.run(acquire(&pool)).value();
      CHECK(machine.count("pinned_bytes") == 128_KiB);
      first.reset();
      second.reset();
      CHECK(pool.pinned() == 128_KiB);
      auto again = here.run(acquire(&pool)).value();
      CHECK(machine.count("cuMemHostRegister_v2") == 2);
    }
    CHECK(machine.count("pinned_bytes") == 0);
  }

  TEST_CASE("what was given back last is given out first") {
    test_loop here;
    staging_pool pool({.slots = 3, .slot_size = 64_KiB}, nullptr, here.helpers);
    auto first = here.run(acquire(&pool)).value();
    auto second = here.run(acquire(&pool)).value();
    const auto* const one = first.bytes().data();
    const auto* const other = second.bytes().data();
    second.reset();
    first.reset();
    auto third = here.run(acquire(&pool)).value();
    auto fourth = here.run(acquire(&pool)).value();
    CHECK(third.bytes().data() == one);
    CHECK(fourth.bytes().data() == other);
  }

  TEST_CASE("those who wait are served in the order of asking") {
    test_loop here;
    staging_pool pool({.slots = 2, .slot_size = 64_KiB}, nullptr, here.helpers);
    std::vector<asked> all(3);
    here.run(served_in_turn(&here, &pool, &all));
    CHECK(all[2].place == 2);
  }

  TEST_CASE("a stop ends the waiting, and only of the one that it was meant for") {
    test_loop here;
    staging_pool pool({.slots = 1, .slot_size = 64_KiB}, nullptr, here.helpers);
    here.run(stopped_while_waiting(&here, &pool));
  }

  TEST_CASE("no slot is lost between a stop and its coming back") {
    test_loop here;
    staging_pool pool({.slots = 1, .slot_size = 64_KiB}, nullptr, here.helpers);
    here.run(stop_meets_slot(&here, &pool, 200));
  }

  TEST_CASE("many workers take turns with few slots") {
    const fake_machine machine;
    test_loop here;
    staging_pool pool({.slots = 3, .slot_size = 64_KiB}, cuda_device::open(0).value(),
                      here.helpers);
    here.run(many_take_turns(&here, &pool, 16));
    CHECK(machine.count("peak_pinned_bytes") <= 3 * 64_KiB);
  }

  TEST_CASE("where no more can be pinned, what there is has to do") {
    const fake_machine machine("pinned=200K");
    test_loop here;
    staging_pool pool({.slots = 16, .slot_size = 64_KiB}, cuda_device::open(0).value(),
                      here.helpers);
    here.run(many_take_turns(&here, &pool, 16));
    CHECK(pool.pinned() == 3 * 64_KiB);
    // It is known by now, and not tried again and again.
    CHECK(machine.count("cuMemHostRegister_v2") <= 16);
  }

  TEST_CASE("a slot that comes back while another one fails to be pinned is used") {
    const fake_machine machine("pinned=64K");
    test_loop here;
    staging_pool pool({.slots = 2, .slot_size = 64_KiB}, cuda_device::open(0).value(),
                      here.helpers);
    asked second;
    here.run(back_before_failing(&here, &pool, &second));
    CHECK(second.got->has_value());
  }

  TEST_CASE("where nothing can be pinned, all who ask are told what to lower") {
    for (const unsigned slots : {1U, 2U, 8U}) {
      const fake_machine machine("pinned=4K");
      test_loop here;
      staging_pool pool({.slots = slots, .slot_size = 64_KiB}, cuda_device::open(0).value(),
                        here.helpers);
      std::vector<asked> all(5);
      here.run(ask_all(&here, &pool, &all));
      for (const asked& one : all) {
        REQUIRE(one.got.has_value());
        REQUIRE_FALSE(one.got->has_value());
        const error failed = one.got->error();
        CHECK(failed.kind() == errc::out_of_memory);
        for (const char* const text : {"CUDA_ERROR_OUT_OF_MEMORY", "64.0 KiB",
                                       "--staging-slot-size", "--staging-slots", "ulimit -l"}) {
          CAPTURE(failed.message());
          CHECK(failed.message().find(text) != std::string::npos);
        }
      }
      CHECK(pool.pinned() == 0);
      // Nothing is held against the pool: once there is room it works.
      machine.configure("pinned=0");
      CHECK(here.run(acquire(&pool)).has_value());
    }
  }

  TEST_CASE("what the system refuses to lock is out of memory, too") {
    const fake_machine machine("fail=cuMemHostRegister:1+=304");
    test_loop here;
    staging_pool pool({.slots = 2, .slot_size = 64_KiB}, cuda_device::open(0).value(),
                      here.helpers);
    const auto got = here.run(acquire(&pool));
    REQUIRE_FALSE(got);
    CHECK(got.error().kind() == errc::out_of_memory);
  }

  TEST_CASE("a dead device is no reason to go on with fewer slots") {
    const fake_machine machine;
    test_loop here;
    staging_pool pool({.slots = 4, .slot_size = 64_KiB}, cuda_device::open(0).value(),
                      here.helpers);
    auto first = here.run(acquire(&pool)).value();
    machine.lose(0, CUDA_ERROR_LAUNCH_FAILED);
    const auto second = here.run(acquire(&pool));
    REQUIRE_FALSE(second);
    CHECK(second.error().kind() == errc::unavailable);
    CHECK(second.error().message().find("--staging") == std::string::npos);
  }

  TEST_CASE("slots may outlive their pool, and are unpinned as they come back") {
    const fake_machine machine;
    test_loop here;
    std::optional<staging_pool> pool;
    pool.emplace(staging_options{.slots = 4, .slot_size = 64_KiB}, cuda_device::open(0).value(),
                 here.helpers);
    auto kept = here.run(acquire(&*pool)).value();
    auto given_back = here.run(acquire(&*pool)).value();
    given_back.reset();
    pool.reset();
    CHECK(machine.count("pinned_bytes") == 64_KiB);
    std::memset(kept.bytes().data(), 1, kept.bytes().size());
    std::thread([last = std::move(kept)]() mutable { last.reset(); }).join();
    CHECK(machine.count("pinned_bytes") == 0);
    CHECK(machine.count("references") == 0);
  }
}
