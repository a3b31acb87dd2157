#include <headrace/coro/task.hpp>

#include <headrace/coro/sync_wait.hpp>
#include <headrace/coro/with.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>

using namespace headrace;

namespace {

// Symmetric transfer needs tail calls; GCC makes them only when it optimises and no sanitizer
// watches.
#if defined(__clang__) || \
    (defined(__OPTIMIZE__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__))
constexpr std::int64_t many = 1'000'000;
constexpr int deep = 100'000;
#else
constexpr std::int64_t many = 1'000;
constexpr int deep = 1'000;
#endif

task<int> give(int value) { co_return value; }

task<std::unique_ptr<int>> give_owned(int value) { co_return std::make_unique<int>(value); }

task<> fail(std::string message) {
  throw std::runtime_error(message);
  co_return;
}

task<int> fail_with_type() {
  throw std::runtime_error("typed");
  co_return 1;
}

task<std::int64_t> sum(std::int64_t count) {
  std::int64_t total = 0;
  for (std::int64_t at = 0; at < count; ++at) {
    const int one = co_await give(1);
    total += one;
  }
  co_return total;
}

task<int> descend(int levels) {
  if (levels == 0) co_return 0;
  const int below = co_await descend(levels - 1);
  co_return below + 1;
}

task<int> descend_to_throw(int levels) {
  if (levels == 0) throw std::runtime_error("bottom");
  const int below = co_await descend_to_throw(levels - 1);
  co_return below + 1;
}

task<environment> environment_below(int levels) {
  if (levels == 0) {
    environment found = co_await current_environment();
    co_return found;
  }
  environment found = co_await environment_below(levels - 1);
  co_return found;
}

struct counted {
  explicit counted(int* live) : live_(live) { ++*live_; }
  counted(const counted& other) : live_(other.live_) { ++*live_; }
  counted& operator=(const counted&) = default;
  ~counted() { --*live_; }
  int* live_;
};

task<int> hold([[maybe_unused]] counted held) { co_return 1; }

task<int> catch_and_go_on() {
  int caught = 0;
  try {
    co_await fail("first");
  } catch (const std::runtime_error&) {
    caught = 1;
  }
  const int more = co_await give(41);
  co_return caught + more;
}

struct throws_when_moved {
  throws_when_moved() = default;
  throws_when_moved(throws_when_moved&& /*other*/) {
    throw std::runtime_error("moved");
  }  // NOLINT: that is the point
};

task<throws_when_moved> give_what_cannot_move() {
  throws_when_moved value;
  co_return std::move(value);
}

// Awaited by its parent through `awaiter`, which copies the environment it was given.
task<bool> sees_stop_of(std::stop_source* source) {
  environment given = co_await current_environment();
  given.stop = source->get_token();
  auto below = environment_below(3);
  auto running = std::move(below).under(std::move(given));
  const environment found = co_await running;
  source->request_stop();
  co_return found.stop.stop_requested();
}

}  // namespace

TEST_SUITE("unit") {
  TEST_CASE("a task gives its value") { CHECK(sync_wait(give(7)) == 7); }

  TEST_CASE("a task gives a value that only moves") { CHECK(*sync_wait(give_owned(7)) == 7); }

  TEST_CASE("a task throws what its body throws") {
    CHECK_THROWS_WITH_AS(sync_wait(fail("away")), "away", std::runtime_error);
    CHECK_THROWS_WITH_AS(sync_wait(fail_with_type()), "typed", std::runtime_error);
  }

  TEST_CASE("a task throws what moving its value throws") {
    CHECK_THROWS_WITH_AS(sync_wait(give_what_cannot_move()), "moved", std::runtime_error);
  }

  TEST_CASE("an exception caught in a coroutine leaves it usable") {
    CHECK(sync_wait(catch_and_go_on()) == 42);
  }

  TEST_CASE("a task that never started is dropped with its parameters") {
    int live = 0;
    {
      auto dropped = hold(counted(&live));
      CHECK(live == 1);
      CHECK(static_cast<bool>(dropped));
    }
    CHECK(live == 0);
  }

  TEST_CASE("assigning to a task drops what it held") {
    int live = 0;
    auto first = hold(counted(&live));
    first = hold(counted(&live));
    CHECK(live == 1);
    auto second = std::move(first);
    CHECK(!static_cast<bool>(first));  // NOLINT: a moved-from task is empty
    CHECK(sync_wait(std::move(second)) == 1);
    CHECK(live == 0);
  }

  TEST_CASE("a task starts only when it is awaited") {
    auto lazy = fail("started");
    CHECK(static_cast<bool>(lazy));
  }

  TEST_CASE("a million awaits in a loop need no stack") { CHECK(sync_wait(sum(many)) == many); }

  TEST_CASE("a chain of a hundred thousand tasks needs no stack") {
    CHECK(sync_wait(descend(deep)) == deep);
  }

  TEST_CASE("an exception climbs a long chain of tasks") {
    CHECK_THROWS_WITH_AS(sync_wait(descend_to_throw(deep / 10)), "bottom", std::runtime_error);
  }

  TEST_CASE("a task inherits executor and stop token through any number of tasks") {
    std::stop_source source;
    const environment found = sync_wait(environment_below(10), source.get_token());
    CHECK(found.executor != nullptr);
    CHECK(found.stop == source.get_token());
    CHECK(found.allocator == std::pmr::get_default_resource());
  }

  TEST_CASE("a task awaited under another environment hands that one down") {
    std::stop_source source;
    CHECK(sync_wait(sees_stop_of(&source)));
  }
}
