#include <headrace/coro/with.hpp>

#include "thread_executor.hpp"

#include <headrace/coro/async_scope.hpp>
#include <headrace/coro/channel.hpp>
#include <headrace/coro/sync_wait.hpp>

#include <doctest/doctest.h>

#include <chrono>
#include <memory>
#include <stdexcept>
#include <thread>

using namespace headrace;
using namespace std::chrono_literals;

namespace {

template <class Work>
errc kind_of_failure(Work work) {
  try {
    work();
  } catch (const error& failed) {
    return failed.kind();
  }
  return {};
}

task<int> sleep_then_give(std::chrono::nanoseconds length, int value) {
  co_await sleep_for(length);
  co_return value;
}

task<> sleep(std::chrono::nanoseconds length) { co_await sleep_for(length); }

task<std::thread::id> here() { co_return std::this_thread::get_id(); }

task<> fail_there(std::thread::id* where) {
  *where = std::this_thread::get_id();
  throw std::runtime_error("over there");
  co_return;
}

task<std::unique_ptr<int>> owned() { co_return std::make_unique<int>(5); }

task<> comes_home(executor* other, std::thread::id there) {
  const auto home = std::this_thread::get_id();
  const auto seen = co_await on(*other, here());
  CHECK(seen == there);
  CHECK(std::this_thread::get_id() == home);
  std::thread::id failed_at;
  bool failed = false;
  try {
    co_await on(*other, fail_there(&failed_at));
  } catch (const std::runtime_error&) {
    failed = true;
  }
  CHECK(failed);
  CHECK(failed_at == there);
  CHECK(std::this_thread::get_id() == home);
  const auto value = co_await on(*other, owned());
  CHECK(*value == 5);
}

task<> nested_homes(executor* first, executor* second, std::thread::id first_id) {
  struct middle {
    static task<std::thread::id> run(executor* further) {
      const auto before = std::this_thread::get_id();
      const auto there = co_await on(*further, here());
      CHECK(there != before);
      CHECK(std::this_thread::get_id() == before);
      co_return before;
    }
  };
  const auto middle_ran = co_await on(*first, middle::run(second));
  CHECK(middle_ran == first_id);
}

task<> via_other(executor* other, std::thread::id there) {
  const auto home = std::this_thread::get_id();
  const auto ran = co_await via(*other, here());
  CHECK(ran == home);
  CHECK(std::this_thread::get_id() == there);
}

task<> via_other_fails(executor* other, std::thread::id there) {
  std::thread::id failed_at;
  bool failed = false;
  try {
    co_await via(*other, fail_there(&failed_at));
  } catch (const std::runtime_error&) {
    failed = true;
  }
  CHECK(failed);
  CHECK(std::this_thread::get_id() == there);
}

// As a coroutine of another library: no environment.
struct foreign {
  struct promise_type {
    foreign get_return_object() noexcept { return {}; }
    std::suspend_never initial_suspend() const noexcept { return {}; }
    std::suspend_never final_suspend() const noexcept { return {}; }
    void return_void() const noexcept {}
    void unhandled_exception() const noexcept { std::terminate(); }
  };
};

foreign await_as_foreigner(task<environment> work, environment* found, bool* finished) {
  *found = co_await std::move(work);
  *finished = true;
}

task<environment> read_environment() {
  environment found = co_await current_environment();
  co_return found;
}

task<> ignore_stop(test::gate* until) { co_await *until; }

task<> open_soon(test::gate* opened) {
  while (!opened->occupied()) co_await sleep_for(1ms);
  // Gives the limit of the other its time to pass: it must not matter how long.
  co_await sleep_for(5ms);
  opened->open();
}

task<bool> finishes_late() {
  test::gate until;
  async_scope scope;
  const environment given = co_await current_environment();
  scope.spawn(*given.executor, open_soon(&until));
  bool threw = false;
  try {
    co_await with_timeout(1ms, ignore_stop(&until));
  } catch (const error&) {
    threw = true;
  }
  co_await scope.join();
  co_return threw;
}

task<> nested_limits(std::chrono::nanoseconds outer, std::chrono::nanoseconds inner,
                     errc* seen_inside) {
  struct inside {
    static task<> run(std::chrono::nanoseconds limit, errc* seen) {
      try {
        co_await with_timeout(limit, sleep(1h));
      } catch (const error& failed) {
        *seen = failed.kind();
        throw;
      }
    }
  };
  co_await with_timeout(outer, inside::run(inner, seen_inside));
}

task<std::stop_token> token_below() {
  const environment given = co_await current_environment();
  co_return given.stop;
}

task<> stop_all_but_the_outer() {
  std::stop_source added;
  environment given = co_await current_environment();
  auto below = co_await with_stop(added.get_token(), token_below());
  CHECK(!given.stop.stop_requested());
  CHECK(!below.stop_requested());
}

task<> receive_nothing(channel<int>* from, bool* got) {
  const auto value = co_await from->receive();
  *got = value.has_value();
}

task<> receive_under_the_same_token_twice(channel<int>* from, bool* got) {
  const environment given = co_await current_environment();
  // Two callbacks on one stop state: the first ends the coroutine, and with it the second and the
  // state.
  co_await with_stop(given.stop, receive_nothing(from, got));
}

// Waits on a condition without an executor, so that the stop resumes it on the stopping thread,
// inside the callback.
foreign wait_inline(channel<int>* from, std::stop_token token, bool* finished) {
  bool got = true;
  auto work = with_stop(std::move(token), receive_under_the_same_token_twice(from, &got));
  co_await std::move(work);
  CHECK(!got);
  *finished = true;
}

}  // namespace

TEST_SUITE("unit") {
  TEST_CASE("sleep_for ends, also for nothing and for less than nothing") {
    CHECK(sync_wait(sleep_then_give(1ms, 4)) == 4);
    CHECK(sync_wait(sleep_then_give(0ns, 4)) == 4);
    CHECK(sync_wait(sleep_then_give(-1h, 4)) == 4);
    CHECK(sync_wait(sleep_then_give(std::chrono::nanoseconds::min(), 4)) == 4);
  }

  TEST_CASE("sleep_for without timers is unsupported") {
    inline_executor here_only;
    CHECK(kind_of_failure([&] { sync_wait(on(here_only, sleep(1ms))); }) == errc::unsupported);
    CHECK(kind_of_failure([&] { sync_wait(on(here_only, with_timeout(1ms, owned()))); }) ==
          errc::unsupported);
  }

  TEST_CASE("a stop before it begins ends a sleep at once") {
    std::stop_source source;
    source.request_stop();
    CHECK(kind_of_failure([&] { sync_wait(sleep(1h), source.get_token()); }) == errc::cancelled);
  }

  TEST_CASE("a stop from another thread ends a sleep that never would") {
    for (int round = 0; round < 100; ++round) {
      std::stop_source source;
      std::thread other([&source] { source.request_stop(); });
      CHECK(kind_of_failure([&] {
              sync_wait(sleep(std::chrono::nanoseconds::max()), source.get_token());
            }) == errc::cancelled);
      other.join();
    }
  }

  TEST_CASE("a stop that races with the end of a sleep gives one or the other") {
    int cancelled = 0;
    int finished = 0;
    for (int round = 0; round < 400; ++round) {
      std::stop_source source;
      std::thread other([&source, round] {
        const auto until =
            std::chrono::steady_clock::now() + std::chrono::microseconds(round % 100);
        while (std::chrono::steady_clock::now() < until) {
        }
        source.request_stop();
      });
      try {
        sync_wait(sleep(std::chrono::microseconds(50)), source.get_token());
        ++finished;
      } catch (const error& failed) {
        CHECK(failed.kind() == errc::cancelled);
        ++cancelled;
      }
      other.join();
    }
    CHECK(cancelled + finished == 400);
  }

  TEST_CASE("with_timeout gives the value of what is in time") {
    CHECK(sync_wait(with_timeout(1h, sleep_then_give(1ms, 9))) == 9);
    CHECK(*sync_wait(with_timeout(1h, owned())) == 5);
    CHECK(sync_wait(with_timeout(std::chrono::nanoseconds::max(), sleep_then_give(1ms, 9))) == 9);
  }

  TEST_CASE("with_timeout throws timeout for what is late") {
    CHECK(kind_of_failure([] { sync_wait(with_timeout(2ms, sleep(1h))); }) == errc::timeout);
    CHECK(kind_of_failure([] { sync_wait(with_timeout(0ms, sleep(1h))); }) == errc::timeout);
    CHECK(kind_of_failure([] { sync_wait(with_timeout(-1ms, sleep(1h))); }) == errc::timeout);
  }

  TEST_CASE("with_timeout lets other errors pass") {
    std::thread::id where;
    CHECK_THROWS_WITH_AS(sync_wait(with_timeout(1h, fail_there(&where))), "over there",
                         std::runtime_error);
  }

  TEST_CASE("with_timeout awaits what does not stop, and gives what it gave") {
    CHECK(!sync_wait(finishes_late()));
  }

  TEST_CASE("a stop from outside is cancelled, not timeout") {
    std::stop_source source;
    std::thread other([&source] { source.request_stop(); });
    CHECK(kind_of_failure([&] { sync_wait(with_timeout(1h, sleep(1h)), source.get_token()); }) ==
          errc::cancelled);
    other.join();
  }

  TEST_CASE("of two limits the inner one that passes first is a timeout inside") {
    errc inside{};
    CHECK(kind_of_failure([&] { sync_wait(nested_limits(1h, 2ms, &inside)); }) == errc::timeout);
    CHECK(inside == errc::timeout);
  }

  TEST_CASE(
      "of two limits the outer one that passes first is cancelled inside and a timeout outside") {
    errc inside{};
    CHECK(kind_of_failure([&] { sync_wait(nested_limits(2ms, 1h, &inside)); }) == errc::timeout);
    CHECK(inside == errc::cancelled);
  }

  TEST_CASE("with_stop stops its task when either token does") {
    {
      std::stop_source added;
      std::thread other([&added] { added.request_stop(); });
      CHECK(kind_of_failure([&] { sync_wait(with_stop(added.get_token(), sleep(1h))); }) ==
            errc::cancelled);
      other.join();
    }
    {
      std::stop_source outer;
      std::thread other([&outer] { outer.request_stop(); });
      CHECK(kind_of_failure([&] { sync_wait(with_stop({}, sleep(1h)), outer.get_token()); }) ==
            errc::cancelled);
      other.join();
    }
    sync_wait(stop_all_but_the_outer());
  }

  TEST_CASE("a stop that resumes the task inside its own callback does no harm") {
    // The stop state, the callbacks and the channel's waiter all end while the stop walks its
    // callbacks.
    channel<int> from(1);
    auto source = std::make_unique<std::stop_source>();
    bool finished = false;
    wait_inline(&from, source->get_token(), &finished);
    CHECK(!finished);
    source->request_stop();
    CHECK(finished);
  }

  TEST_CASE("on runs elsewhere and comes home, with values and with errors") {
    test::thread_executor other;
    for (int round = 0; round < 50; ++round) sync_wait(comes_home(&other.get(), other.id()));
  }

  TEST_CASE("on inside on comes home to the middle") {
    test::thread_executor first;
    test::thread_executor second;
    sync_wait(nested_homes(&first.get(), &second.get(), first.id()));
  }

  TEST_CASE("via runs here and resumes there") {
    test::thread_executor other;
    sync_wait(via_other(&other.get(), other.id()));
    sync_wait(via_other_fails(&other.get(), other.id()));
  }

  TEST_CASE("a foreign coroutine gives the empty environment") {
    environment found;
    bool finished = false;
    await_as_foreigner(read_environment(), &found, &finished);
    CHECK(finished);
    CHECK(found.executor == nullptr);
    CHECK(!found.stop.stop_possible());
  }
}
