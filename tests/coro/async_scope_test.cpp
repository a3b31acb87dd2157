#include <headrace/coro/async_scope.hpp>

#include "thread_executor.hpp"

#include <headrace/coro/sync_wait.hpp>
#include <headrace/coro/with.hpp>

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

using namespace headrace;
using namespace std::chrono_literals;

namespace {

task<> add(std::atomic<int>* total, int value) {
  *total += value;
  co_return;
}

task<> add_holding(std::atomic<int>* total, std::shared_ptr<int> held) {
  co_await sleep_for(0ns);
  *total += *held;
}

task<> fail(std::string message) {
  throw std::runtime_error(message);
  co_return;
}

task<> sleep_until_stopped(std::atomic<int>* stopped) {
  try {
    co_await sleep_for(1h);
  } catch (const error& failed) {
    CHECK(failed.kind() == errc::cancelled);
    ++*stopped;
  }
}

task<> fail_when_stopped() {
  try {
    co_await sleep_for(1h);
  } catch (const error&) {
    throw std::runtime_error("second");
  }
}

task<> join(async_scope* scope) { co_await scope->join(); }

task<> spawn_more(async_scope* scope, executor* target, std::atomic<int>* total, int levels) {
  ++*total;
  if (levels > 0) {
    scope->spawn(*target, spawn_more(scope, target, total, levels - 1));
    scope->spawn(*target, spawn_more(scope, target, total, levels - 1));
  }
  co_return;
}

task<> count_on_here(async_scope* scope, std::atomic<int>* total, int spawned) {
  const environment given = co_await current_environment();
  for (int at = 0; at < spawned; ++at)
    scope->spawn(*given.executor, add_holding(total, std::make_shared<int>(1)));
  co_await scope->join();
}

task<std::thread::id> spawned_thread(executor* target) {
  std::thread::id seen;
  async_scope scope;
  struct note {
    static task<> run(std::thread::id* into) {
      *into = std::this_thread::get_id();
      co_return;
    }
  };
  scope.spawn(*target, note::run(&seen));
  co_await scope.join();
  co_return seen;
}

task<> first_failure_wins(executor* target, std::atomic<int>* stopped) {
  async_scope scope;
  scope.spawn(*target, sleep_until_stopped(stopped));
  scope.spawn(*target, fail_when_stopped());
  scope.spawn(*target, fail("first"));
  bool failed = false;
  try {
    co_await scope.join();
  } catch (const std::runtime_error& error) {
    failed = true;
    CHECK(std::string(error.what()) == "first");
  }
  CHECK(failed);
  CHECK(scope.running() == 0);
  CHECK(scope.stop_token().stop_requested());
  // The failure was handed over: what follows is not to blame.
  co_await scope.join();
}

task<> suspend_on(test::gate* until) { co_await *until; }

}  // namespace

TEST_SUITE("unit") {
  TEST_CASE("a scope in which nothing was spawned joins at once") {
    async_scope scope;
    CHECK_NOTHROW(sync_wait(join(&scope)));
    CHECK(scope.running() == 0);
  }

  TEST_CASE("join awaits everything spawned, and may be called again") {
    std::atomic<int> total{0};
    async_scope scope;
    sync_wait(count_on_here(&scope, &total, 100));
    CHECK(total == 100);
    sync_wait(count_on_here(&scope, &total, 50));
    CHECK(total == 150);
  }

  TEST_CASE("a spawned task runs on the executor it was given") {
    test::thread_executor other;
    CHECK(sync_wait(spawned_thread(&other.get())) == other.id());
  }

  TEST_CASE("the first error is kept, stops the others, and is thrown once") {
    test::thread_executor other;
    for (int round = 0; round < 20; ++round) {
      std::atomic<int> stopped{0};
      sync_wait(first_failure_wins(&other.get(), &stopped));
      CHECK(stopped == 1);
    }
  }

  TEST_CASE("a stop of the parent stops what was spawned, and what is spawned later") {
    test::thread_executor other;
    std::atomic<int> stopped{0};
    std::stop_source parent;
    async_scope scope(parent.get_token());
    scope.spawn(other.get(), sleep_until_stopped(&stopped));
    parent.request_stop();
    scope.spawn(other.get(), sleep_until_stopped(&stopped));
    sync_wait(join(&scope));
    CHECK(stopped == 2);
    async_scope late(parent.get_token());
    late.spawn(other.get(), sleep_until_stopped(&stopped));
    sync_wait(join(&late));
    CHECK(stopped == 3);
  }

  TEST_CASE("join sees the end also when its own caller was stopped") {
    test::thread_executor other;
    test::gate until;
    async_scope scope;
    scope.spawn(other.get(), suspend_on(&until));
    std::stop_source source;
    source.request_stop();
    std::thread opener([&until] {
      CHECK(test::eventually([&until] { return until.occupied(); }));
      until.open();
    });
    sync_wait(join(&scope), source.get_token());
    CHECK(scope.running() == 0);
    opener.join();
  }

  TEST_CASE("what is spawned by what was spawned is joined too") {
    test::thread_executor first;
    std::atomic<int> total{0};
    async_scope scope;
    scope.spawn(first.get(), spawn_more(&scope, &first.get(), &total, 9));
    sync_wait(join(&scope));
    CHECK(total == 1023);
  }

  TEST_CASE("many threads spawn onto two executors and nothing is lost") {
    test::thread_executor first;
    test::thread_executor second;
    std::atomic<int> total{0};
    const auto held = std::make_shared<int>(1);
    {
      async_scope scope;
      std::vector<std::thread> spawners;
      for (int spawner = 0; spawner < 4; ++spawner) {
        spawners.emplace_back([&, spawner] {
          for (int at = 0; at < 500; ++at) {
            scope.spawn(spawner % 2 == 0 ? first.get() : second.get(), add_holding(&total, held));
          }
        });
      }
      for (auto& spawner : spawners) spawner.join();
      sync_wait(join(&scope));
    }
    CHECK(total == 2000);
    // What the tasks held was gone when join returned.
    CHECK(held.use_count() == 1);
  }

  TEST_CASE("several coroutines may join one scope") {
    test::thread_executor other;
    std::atomic<int> total{0};
    test::gate until;
    async_scope scope;
    scope.spawn(other.get(), suspend_on(&until));
    std::vector<std::thread> joiners;
    for (int joiner = 0; joiner < 3; ++joiner) {
      joiners.emplace_back([&] {
        sync_wait(join(&scope));
        ++total;
      });
    }
    CHECK(test::eventually([&until] { return until.occupied(); }));
    until.open();
    for (auto& joiner : joiners) joiner.join();
    CHECK(total == 3);
  }

  TEST_CASE("a scope on the inline executor runs at once") {
    inline_executor here;
    std::atomic<int> total{0};
    async_scope scope;
    scope.spawn(here, add(&total, 7));
    CHECK(total == 7);
    CHECK(scope.running() == 0);
  }

  TEST_CASE("a stop and a join race without harm") {
    test::thread_executor other;
    std::atomic<int> stopped{0};
    for (int round = 0; round < 300; ++round) {
      std::stop_source parent;
      std::thread stopper([&parent] { parent.request_stop(); });
      {
        async_scope scope(parent.get_token());
        scope.spawn(other.get(), sleep_until_stopped(&stopped));
        sync_wait(join(&scope));
      }
      stopper.join();
    }
    CHECK(stopped == 300);
  }
}
