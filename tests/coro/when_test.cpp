#include <headrace/coro/when.hpp>

#include "thread_executor.hpp"

#include <headrace/coro/sync_wait.hpp>
#include <headrace/coro/with.hpp>

#include <doctest/doctest.h>

#include <chrono>
#include <memory>
#include <stdexcept>
#include <vector>

using namespace headrace;
using namespace std::chrono_literals;

namespace {

task<int> give_after(std::chrono::milliseconds pause, int value) {
  co_await sleep_for(pause);
  co_return value;
}

task<int> fail_after(std::chrono::milliseconds pause) {
  co_await sleep_for(pause);
  throw std::runtime_error("failed");
  co_return 0;
}

task<std::unique_ptr<int>> owned(int value) { co_return std::make_unique<int>(value); }

task<> count_until_stopped(int* finished) {
  try {
    co_await sleep_for(1h);
  } catch (const error&) {
    ++*finished;
    throw;
  }
}

task<> fail_now() {
  throw std::runtime_error("failed");
  co_return;
}

task<int> fail_once_occupied(test::gate* other) {
  while (!other->occupied()) co_await sleep_for(1ms);
  throw std::runtime_error("failed");
  co_return 0;
}

task<> open_once_stopped(test::gate* opened, std::stop_token token) {
  while (!token.stop_requested()) co_await sleep_for(1ms);
  opened->open();
}

/// Gives a value although, and only once, it was asked to stop.
task<int> wait_stubbornly(test::gate* until) {
  const environment given = co_await current_environment();
  // Outside of the race, so that the stop does not reach it.
  async_scope scope;
  scope.spawn(*given.executor, open_once_stopped(until, given.stop));
  co_await *until;
  co_await scope.join();
  co_return 1;
}

template <class T>
std::vector<task<T>> both(task<T> first, task<T> second) {
  std::vector<task<T>> works;
  works.push_back(std::move(first));
  works.push_back(std::move(second));
  return works;
}

}  // namespace

TEST_SUITE("unit") {
  TEST_CASE("when_all gives the values in order, whichever came first") {
    std::vector<task<int>> works;
    works.push_back(give_after(10ms, 1));
    works.push_back(give_after(0ms, 2));
    works.push_back(give_after(5ms, 3));
    CHECK(sync_wait(when_all(std::move(works))) == std::vector<int>{1, 2, 3});
  }

  TEST_CASE("when_all of nothing is done") {
    CHECK(sync_wait(when_all(std::vector<task<int>>())).empty());
    CHECK_NOTHROW(sync_wait(when_all(std::vector<task<>>())));
  }

  TEST_CASE("when_all gives values that only move") {
    const auto values = sync_wait(when_all(both(owned(1), owned(2))));
    REQUIRE(values.size() == 2);
    CHECK(*values[1] == 2);
  }

  TEST_CASE("when_all stops the others at the first error, and throws it when all have finished") {
    int finished = 0;
    std::vector<task<>> works;
    works.push_back(count_until_stopped(&finished));
    works.push_back(fail_now());
    works.push_back(count_until_stopped(&finished));
    CHECK_THROWS_WITH_AS(sync_wait(when_all(std::move(works))), "failed", std::runtime_error);
    CHECK(finished == 2);
  }

  TEST_CASE("when_all stops when its awaiter does") {
    std::stop_source source;
    source.request_stop();
    bool cancelled = false;
    try {
      sync_wait(when_all(both(give_after(1h, 1), give_after(1h, 2))), source.get_token());
    } catch (const error& failed) {
      cancelled = failed.kind() == errc::cancelled;
    }
    CHECK(cancelled);
  }

  TEST_CASE("when_any gives the first and stops the others") {
    const auto [index, value] = sync_wait(when_any(both(give_after(1h, 1), give_after(1ms, 2))));
    CHECK(index == 1);
    CHECK(value == 2);
  }

  TEST_CASE("when_any throws what fails first") {
    CHECK_THROWS_WITH_AS(sync_wait(when_any(both(give_after(1h, 1), fail_after(0ms)))), "failed",
                         std::runtime_error);
  }

  TEST_CASE("when_any ignores what fails after the first") {
    const auto [index, value] = sync_wait(when_any(both(give_after(0ms, 1), fail_after(1h))));
    CHECK(index == 0);
    CHECK(value == 1);
  }

  TEST_CASE("when_any throws what failed first even if another gives a value after that") {
    test::gate until;
    CHECK_THROWS_WITH_AS(
        sync_wait(when_any(both(wait_stubbornly(&until), fail_once_occupied(&until)))), "failed",
        std::runtime_error);
  }
}
