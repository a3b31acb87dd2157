#include <headrace/coro/sync_wait.hpp>

#include "thread_executor.hpp"

#include <headrace/coro/async_scope.hpp>
#include <headrace/coro/with.hpp>

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

using namespace headrace;
using namespace std::chrono_literals;

namespace {

task<std::thread::id> here() { co_return std::this_thread::get_id(); }

task<int> hop(executor* other, int rounds) {
  const auto home = std::this_thread::get_id();
  int away = 0;
  for (int round = 0; round < rounds; ++round) {
    const auto there = co_await on(*other, here());
    if (there != home) ++away;
    CHECK(std::this_thread::get_id() == home);
  }
  co_return away;
}

// What an awaitable of another library may do: it resumes on a thread of its own, whatever the
// executor.
struct resumes_elsewhere {
  std::thread* helper;
  [[nodiscard]] bool await_ready() const noexcept { return false; }
  void await_suspend(std::coroutine_handle<> handle) const {
    *helper = std::thread([handle] { handle.resume(); });
  }
  void await_resume() const noexcept {}
};

task<std::thread::id> end_elsewhere(std::thread* helper) {
  co_await resumes_elsewhere{helper};
  co_return std::this_thread::get_id();
}

task<> fail_elsewhere(std::thread* helper) {
  co_await resumes_elsewhere{helper};
  throw std::runtime_error("far away");
}

task<> sleep_in_order(std::vector<int>* order) {
  async_scope scope;
  const environment given = co_await current_environment();
  struct pause {
    static task<> run(std::vector<int>* into, int number, std::chrono::milliseconds length) {
      co_await sleep_for(length);
      into->push_back(number);
    }
  };
  scope.spawn(*given.executor, pause::run(order, 3, 30ms));
  scope.spawn(*given.executor, pause::run(order, 1, 1ms));
  scope.spawn(*given.executor, pause::run(order, 2, 15ms));
  scope.spawn(*given.executor, pause::run(order, 0, -5ms));
  co_await scope.join();
}

task<std::unique_ptr<int>> owned() { co_return std::make_unique<int>(5); }

task<int> nested() {
  struct inner {
    static task<int> run() { co_return 3; }
  };
  // Blocking inside a coroutine is bad manners, but it must not confuse the outer wait.
  const int inside = sync_wait(inner::run());
  co_await sleep_for(1ms);
  co_return inside;
}

}  // namespace

TEST_SUITE("unit") {
  TEST_CASE("sync_wait runs the task on the calling thread") {
    CHECK(sync_wait(here()) == std::this_thread::get_id());
  }

  TEST_CASE("sync_wait gives values that only move, and nothing for void") {
    CHECK(*sync_wait(owned()) == 5);
    struct nothing {
      static task<> run() { co_return; }
    };
    CHECK_NOTHROW(sync_wait(nothing::run()));
  }

  TEST_CASE("sync_wait works from several threads at once") {
    test::thread_executor other;
    std::atomic<int> away{0};
    std::vector<std::thread> callers;
    for (int caller = 0; caller < 4; ++caller) {
      callers.emplace_back([&] { away += sync_wait(hop(&other.get(), 500)); });
    }
    for (auto& caller : callers) caller.join();
    CHECK(away == 2000);
  }

  TEST_CASE("sync_wait ends on the caller when its task ended elsewhere") {
    for (int round = 0; round < 200; ++round) {
      std::thread helper;
      CHECK(sync_wait(end_elsewhere(&helper)) != std::this_thread::get_id());
      helper.join();
      CHECK_THROWS_WITH_AS(sync_wait(fail_elsewhere(&helper)), "far away", std::runtime_error);
      helper.join();
    }
  }

  TEST_CASE("timers of a blocked caller run in the order of their deadlines") {
    std::vector<int> order;
    sync_wait(sleep_in_order(&order));
    CHECK(order == std::vector<int>{0, 1, 2, 3});
  }

  TEST_CASE("sync_wait inside a coroutine leaves the outer one alone") {
    CHECK(sync_wait(nested()) == 3);
  }
}
