#include <headrace/coro/async_condition.hpp>

#include "thread_executor.hpp"

#include <headrace/coro/async_scope.hpp>
#include <headrace/coro/sync_wait.hpp>
#include <headrace/coro/with.hpp>

#include <doctest/doctest.h>

#include <atomic>
#include <mutex>
#include <thread>
#include <vector>

using namespace headrace;

namespace {

struct shared_state {
  std::mutex mutex;
  async_condition changed;
  int tokens = 0;
  int waiting = 0;
  std::vector<int> order;
};

/// Takes one token; false where it was stopped first.
task<bool> take(shared_state* shared) {
  std::unique_lock lock(shared->mutex);
  while (shared->tokens == 0) {
    ++shared->waiting;
    const bool notified = co_await shared->changed.wait(lock);
    CHECK(lock.owns_lock());
    --shared->waiting;
    if (!notified) co_return false;
  }
  --shared->tokens;
  co_return true;
}

task<> take_counted(shared_state* shared, std::atomic<int>* taken, std::atomic<int>* stopped) {
  const bool got = co_await take(shared);
  ++*(got ? taken : stopped);
}

task<> take_in_order(shared_state* shared, int number) {
  std::unique_lock lock(shared->mutex);
  ++shared->waiting;
  const bool notified = co_await shared->changed.wait(lock);
  CHECK(notified);
  shared->order.push_back(number);
}

void give(shared_state& shared, int tokens) {
  async_condition::wake_list woken;
  const std::lock_guard lock(shared.mutex);
  shared.tokens += tokens;
  for (int at = 0; at < tokens; ++at) shared.changed.notify_one(woken);
}

int waiting_in(shared_state& shared) {
  const std::lock_guard lock(shared.mutex);
  return shared.waiting;
}

task<> join(async_scope* scope) { co_await scope->join(); }

task<> wait_whatever(shared_state* shared, bool* notified) {
  std::unique_lock lock(shared->mutex);
  ++shared->waiting;
  *notified = co_await shared->changed.wait_unstoppable(lock);
}

}  // namespace

TEST_SUITE("unit") {
  TEST_CASE("waiters are notified in the order in which they came") {
    test::thread_executor other;
    shared_state shared;
    async_scope scope;
    for (int number = 0; number < 5; ++number)
      scope.spawn(other.get(), take_in_order(&shared, number));
    REQUIRE(test::eventually([&] { return waiting_in(shared) == 5; }));
    give(shared, 2);
    {
      async_condition::wake_list woken;
      const std::lock_guard lock(shared.mutex);
      shared.changed.notify_all(woken);
    }
    sync_wait(join(&scope));
    CHECK(shared.order == std::vector<int>{0, 1, 2, 3, 4});
  }

  TEST_CASE("notifying nobody is forgotten") {
    shared_state shared;
    {
      async_condition::wake_list woken;
      const std::lock_guard lock(shared.mutex);
      shared.changed.notify_one(woken);
      shared.changed.notify_all(woken);
    }
    std::stop_source source;
    source.request_stop();
    CHECK(!sync_wait(take(&shared), source.get_token()));
    CHECK(shared.waiting == 0);
  }

  TEST_CASE("a stop takes a waiter out of the middle of the queue") {
    test::thread_executor other;
    shared_state shared;
    std::atomic<int> taken{0};
    std::atomic<int> stopped{0};
    async_scope first;
    async_scope middle;
    async_scope last;
    first.spawn(other.get(), take_counted(&shared, &taken, &stopped));
    REQUIRE(test::eventually([&] { return waiting_in(shared) == 1; }));
    middle.spawn(other.get(), take_counted(&shared, &taken, &stopped));
    REQUIRE(test::eventually([&] { return waiting_in(shared) == 2; }));
    last.spawn(other.get(), take_counted(&shared, &taken, &stopped));
    REQUIRE(test::eventually([&] { return waiting_in(shared) == 3; }));
    middle.request_stop();
    sync_wait(join(&middle));
    CHECK(stopped == 1);
    give(shared, 2);
    sync_wait(join(&first));
    sync_wait(join(&last));
    CHECK(taken == 2);
  }

  TEST_CASE("an unstoppable wait sees only the notification") {
    test::thread_executor other;
    shared_state shared;
    bool notified = false;
    async_scope scope;
    scope.request_stop();
    scope.spawn(other.get(), wait_whatever(&shared, &notified));
    REQUIRE(test::eventually([&] { return waiting_in(shared) == 1; }));
    give(shared, 1);
    sync_wait(join(&scope));
    CHECK(notified);
  }

  TEST_CASE("stops race with notifications and no token is lost") {
    test::thread_executor first;
    test::thread_executor second;
    for (int round = 0; round < 500; ++round) {
      CAPTURE(round);
      shared_state shared;
      std::atomic<int> taken{0};
      std::atomic<int> stopped{0};
      async_scope stoppable;
      async_scope steady;
      stoppable.spawn(first.get(), take_counted(&shared, &taken, &stopped));
      stoppable.spawn(second.get(), take_counted(&shared, &taken, &stopped));
      std::thread stopper([&stoppable] { stoppable.request_stop(); });
      std::thread giver([&shared] { give(shared, 2); });
      stopper.join();
      giver.join();
      sync_wait(join(&stoppable));
      CHECK(taken + stopped == 2);
      CHECK(shared.tokens == 2 - taken);
      // What is left is there for others.
      for (int left = shared.tokens; left > 0; --left) {
        steady.spawn(first.get(), take_counted(&shared, &taken, &stopped));
      }
      sync_wait(join(&steady));
      CHECK(shared.tokens == 0);
      CHECK(shared.waiting == 0);
    }
  }

  TEST_CASE("many takers and givers on several threads come out even") {
    test::thread_executor first;
    test::thread_executor second;
    shared_state shared;
    std::atomic<int> taken{0};
    std::atomic<int> stopped{0};
    async_scope scope;
    std::vector<std::thread> threads;
    for (int at = 0; at < 3; ++at) {
      threads.emplace_back([&, at] {
        for (int round = 0; round < 500; ++round) {
          scope.spawn(at == 0 ? first.get() : second.get(),
                      take_counted(&shared, &taken, &stopped));
          give(shared, 1);
        }
      });
    }
    for (auto& thread : threads) thread.join();
    sync_wait(join(&scope));
    CHECK(taken == 1500);
    CHECK(stopped == 0);
    CHECK(shared.tokens == 0);
  }

  TEST_CASE(
      "a waiter without an executor is resumed by the notifier, after the mutex was released") {
    inline_executor here;
    shared_state shared;
    std::atomic<int> taken{0};
    std::atomic<int> stopped{0};
    async_scope scope;
    scope.spawn(here, take_counted(&shared, &taken, &stopped));
    CHECK(shared.waiting == 1);
    give(shared, 1);
    CHECK(taken == 1);
    scope.spawn(here, take_counted(&shared, &taken, &stopped));
    scope.request_stop();
    CHECK(stopped == 1);
    CHECK(scope.running() == 0);
  }
}
