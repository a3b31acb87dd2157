#include "storage/refreshed.hpp"

#include "manual_clock.hpp"
#include "storage_client.hpp"

#include <headrace/coro/async_scope.hpp>
#include <headrace/coro/with.hpp>

#include <doctest/doctest.h>
#include <support/loop_thread.hpp>

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

namespace headrace {
namespace {

using namespace std::chrono_literals;
using test::loop_thread;
using test::manual_clock;
using test::storage_client;

using answer = result<expiring<std::string>>;

answer lasting(std::string value) { return expiring<std::string>{std::move(value), std::nullopt}; }
answer until(std::string value, system_time expires) {
  return expiring<std::string>{std::move(value), expires};
}
answer refusal(const std::string& why) { return failure{error(errc::access_denied, why)}; }

/// Answers in turn; holds each answer back while it is closed.
class scripted_source final : public expiring_source<std::string> {
 public:
  explicit scripted_source(std::deque<answer> answers, bool closed = false)
      : answers_(std::move(answers)), closed_(closed) {}

  task<answer> fetch(storage_loop&) override {
    std::unique_lock lock(mutex_);
    ++fetches_;
    started_.notify_all();
    while (closed_) {
      const bool notified = co_await opened_.wait(lock);
      if (!notified) co_return failure{error(errc::cancelled, "stopped")};
    }
    if (answers_.empty()) throw std::runtime_error("nothing left to answer");
    answer next = std::move(answers_.front());
    answers_.pop_front();
    co_return next;
  }

  void open() {
    async_condition::wake_list woken;
    const std::lock_guard lock(mutex_);
    closed_ = false;
    opened_.notify_all(woken);
  }

  void close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }

  [[nodiscard]] std::size_t fetches() const {
    const std::lock_guard lock(mutex_);
    return fetches_;
  }

  void wait_for_fetches(std::size_t count) {
    std::unique_lock lock(mutex_);
    REQUIRE(started_.wait_for(lock, 20s, [&] { return fetches_ >= count; }));
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable started_;
  async_condition opened_;
  std::deque<answer> answers_;
  bool closed_;
  std::size_t fetches_ = 0;
};

using values = refreshed<std::string>;

std::string get(storage_client& here, values& from) {
  auto value = here.run(from.get(here.services));
  return value ? *value : "failed: " + value.error().reason();
}

task<void> get_into(values* from, storage_loop* loop, std::string* into) {
  auto value = co_await from->get(*loop);
  *into = value ? *value
                : (value.error().kind() == errc::cancelled ? "cancelled"
                                                           : "failed: " + value.error().reason());
}

TEST_SUITE("fault") {
  TEST_CASE("a value that lasts is fetched once") {
    storage_client here;
    manual_clock time;
    const auto source = std::make_shared<scripted_source>(std::deque<answer>{lasting("a")});
    values from(source, time);
    CHECK(source->fetches() == 0);
    CHECK(get(here, from) == "a");
    time.advance(std::chrono::hours(24 * 365));
    CHECK(get(here, from) == "a");
    CHECK(source->fetches() == 1);
  }

  TEST_CASE("a value is fetched again five minutes before it runs out, and not earlier") {
    storage_client here;
    manual_clock time;
    const auto source = std::make_shared<scripted_source>(std::deque<answer>{
        until("a", manual_clock::start() + 1h), until("b", manual_clock::start() + 2h)});
    values from(source, time);
    CHECK(get(here, from) == "a");
    time.advance(54min + 59s);
    CHECK(get(here, from) == "a");
    CHECK(source->fetches() == 1);
    time.advance(1s);
    CHECK(get(here, from) == "b");
    CHECK(get(here, from) == "b");
    CHECK(source->fetches() == 2);
  }

  TEST_CASE("a refresh that fails leaves the value that holds, and is tried again a minute later") {
    storage_client here;
    manual_clock time;
    const auto source = std::make_shared<scripted_source>(
        std::deque<answer>{until("a", manual_clock::start() + 1h), refusal("not now"),
                           refusal("not now"), refusal("not now")});
    values from(source, time);
    CHECK(get(here, from) == "a");
    time.advance(56min);
    CHECK(get(here, from) == "a");
    CHECK(get(here, from) == "a");
    CHECK(source->fetches() == 2);
    time.advance(60s);
    CHECK(get(here, from) == "a");
    CHECK(source->fetches() == 3);
    time.advance(3min);
    CHECK(get(here, from) == "failed: not now");
    CHECK(source->fetches() == 4);
  }

  TEST_CASE("a value that comes as if it had run out serves for a minute: the clock may be wrong") {
    storage_client here;
    manual_clock time;
    const auto source = std::make_shared<scripted_source>(std::deque<answer>{
        until("a", manual_clock::start() - 1h), until("b", manual_clock::start() - 1h)});
    values from(source, time);
    CHECK(get(here, from) == "a");
    time.advance(59s);
    CHECK(get(here, from) == "a");
    CHECK(source->fetches() == 1);
    time.advance(1s);
    CHECK(get(here, from) == "b");
  }

  TEST_CASE("a value that a store has refused is fetched anew, once, whoever reports it late") {
    storage_client here;
    manual_clock time;
    const auto source =
        std::make_shared<scripted_source>(std::deque<answer>{lasting("a"), lasting("b")});
    values from(source, time);
    CHECK(get(here, from) == "a");
    from.refuse("a");
    CHECK(get(here, from) == "b");
    from.refuse("a");
    CHECK(get(here, from) == "b");
    CHECK(source->fetches() == 2);
  }

  TEST_CASE("a failure is told and not remembered") {
    storage_client here;
    manual_clock time;
    const auto source =
        std::make_shared<scripted_source>(std::deque<answer>{refusal("no keys"), lasting("a")});
    values from(source, time);
    CHECK(get(here, from) == "failed: no keys");
    CHECK(get(here, from) == "a");
  }

  TEST_CASE("what a fetch throws reaches its caller, and the next one fetches") {
    storage_client here;
    manual_clock time;
    const auto source = std::make_shared<scripted_source>(std::deque<answer>{});
    values from(source, time);
    CHECK_THROWS_AS(get(here, from), std::runtime_error);
    CHECK_THROWS_AS(get(here, from), std::runtime_error);
    CHECK(source->fetches() == 2);
  }

  TEST_CASE("all who wait, on whichever loop, share one fetch, its failure included") {
    for (const bool fails : {false, true}) {
      CAPTURE(fails);
      storage_client unused;
      manual_clock time;
      const auto source = std::make_shared<scripted_source>(
          std::deque<answer>{fails ? refusal("no keys") : lasting("a"), lasting("later")}, true);
      values from(source, time);
      std::vector<std::unique_ptr<loop_thread>> loops;
      for (int i = 0; i < 3; ++i) loops.push_back(std::make_unique<loop_thread>());
      std::vector<std::string> got(12);
      async_scope scope;
      scope.spawn(loops[0]->context(), get_into(&from, &unused.services, got.data()));
      source->wait_for_fetches(1);
      for (std::size_t i = 1; i < got.size(); ++i)
        scope.spawn(loops[i % 3]->context(), get_into(&from, &unused.services, &got[i]));
      // Each loop has run what was posted before this: all of them wait.
      for (auto& loop : loops) loop->run([]() -> task<void> { co_return; }());
      source->open();
      loops[0]->run(scope.join());
      CHECK(source->fetches() == 1);
      for (const auto& value : got) CHECK(value == (fails ? "failed: no keys" : "a"));
    }
  }

  TEST_CASE("a stop ends the fetch of whoever began it, and one who waits takes over") {
    storage_client unused;
    manual_clock time;
    const auto source = std::make_shared<scripted_source>(std::deque<answer>{lasting("a")}, true);
    values from(source, time);
    loop_thread one;
    loop_thread two;
    std::string first;
    std::string second;
    std::string third;
    std::stop_source stop;
    async_scope stopped(stop.get_token());
    async_scope others;
    stopped.spawn(one.context(), get_into(&from, &unused.services, &first));
    source->wait_for_fetches(1);
    others.spawn(two.context(), get_into(&from, &unused.services, &second));
    others.spawn(one.context(), get_into(&from, &unused.services, &third));
    for (auto* const loop : {&one, &two}) loop->run([]() -> task<void> { co_return; }());
    stop.request_stop();
    one.run(stopped.join());
    source->wait_for_fetches(2);
    source->open();
    two.run(others.join());
    CHECK(first == "cancelled");
    CHECK(second == "a");
    CHECK(third == "a");
    CHECK(source->fetches() == 2);
  }

  TEST_CASE("one who waits can be stopped, and the fetch goes on for the others") {
    storage_client unused;
    manual_clock time;
    const auto source = std::make_shared<scripted_source>(std::deque<answer>{lasting("a")}, true);
    values from(source, time);
    loop_thread one;
    loop_thread two;
    std::string first;
    std::string second;
    std::stop_source stop;
    async_scope fetching;
    async_scope waiting(stop.get_token());
    fetching.spawn(one.context(), get_into(&from, &unused.services, &first));
    source->wait_for_fetches(1);
    waiting.spawn(two.context(), get_into(&from, &unused.services, &second));
    two.run([]() -> task<void> { co_return; }());
    stop.request_stop();
    two.run(waiting.join());
    CHECK(second == "cancelled");
    source->open();
    one.run(fetching.join());
    CHECK(first == "a");
    CHECK(source->fetches() == 1);
  }

  TEST_CASE("a stop of a refresh is no failure: the value stays and is refreshed by the next") {
    storage_client here;
    manual_clock time;
    const auto source = std::make_shared<scripted_source>(std::deque<answer>{
        until("a", manual_clock::start() + 1h), until("b", manual_clock::start() + 2h)});
    values from(source, time);
    CHECK(get(here, from) == "a");
    time.advance(56min);
    source->close();
    std::stop_source stop;
    stop.request_stop();
    const auto stopped = here.run(with_stop(stop.get_token(), from.get(here.services)));
    REQUIRE_FALSE(stopped);
    CHECK(stopped.error().kind() == errc::cancelled);
    source->open();
    CHECK(get(here, from) == "b");
  }
}

}  // namespace
}  // namespace headrace
