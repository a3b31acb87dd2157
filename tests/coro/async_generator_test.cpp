#include <headrace/coro/async_generator.hpp>

#include <headrace/coro/sync_wait.hpp>
#include <headrace/coro/with.hpp>

#include <doctest/doctest.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

using namespace headrace;

namespace {

struct counted {
  explicit counted(int* live) : live_(live) { ++*live_; }
  counted(const counted& other) = delete;
  counted& operator=(const counted&) = delete;
  ~counted() { --*live_; }
  int* live_;
};

async_generator<int> count_to(int last) {
  for (int value = 1; value <= last; ++value) co_yield value;
}

async_generator<int> count_then_throw(int last) {
  for (int value = 1; value <= last; ++value) co_yield value;
  throw std::runtime_error("ran dry");
}

async_generator<std::unique_ptr<int>> owned(int last) {
  for (int value = 1; value <= last; ++value) co_yield std::make_unique<int>(value);
}

async_generator<std::string> named_and_temporary() {
  std::string kept = "kept";
  co_yield kept;
  // Whatever the consumer did to it is seen here.
  co_yield kept + "!";
  co_yield std::string("temporary");
}

async_generator<int> holding(int* live) {
  const counted local(live);
  for (int value = 0;; ++value) co_yield value;
}

async_generator<std::stop_token> tokens() {
  for (;;) {
    const environment given = co_await current_environment();
    co_yield std::stop_token(given.stop);
  }
}

task<int> sum(async_generator<int> values) {
  int total = 0;
  while (auto* value = co_await values.next()) total += *value;
  int* const after = co_await values.next();
  CHECK(after == nullptr);
  co_return total;
}

task<int> sum_until_error(async_generator<int> values, std::string* message) {
  int total = 0;
  try {
    while (auto* value = co_await values.next()) total += *value;
  } catch (const std::runtime_error& failed) {
    *message = failed.what();
  }
  for (int again = 0; again < 3; ++again) {
    int* const after = co_await values.next();
    CHECK(after == nullptr);
  }
  co_return total;
}

task<std::vector<std::unique_ptr<int>>> move_out(async_generator<std::unique_ptr<int>> values) {
  std::vector<std::unique_ptr<int>> kept;
  while (auto* value = co_await values.next()) kept.push_back(std::move(*value));
  co_return kept;
}

task<std::vector<std::string>> append_to_each(async_generator<std::string> values) {
  std::vector<std::string> seen;
  while (auto* value = co_await values.next()) {
    *value += '+';
    seen.push_back(*value);
  }
  co_return seen;
}

task<> take_one_and_drop(int* live) {
  {
    auto values = holding(live);
    int* const first = co_await values.next();
    CHECK(first != nullptr);
    CHECK(*live == 1);
  }
  CHECK(*live == 0);
}

task<> note(bool* noted) {
  *noted = true;
  co_return;
}

task<> throw_at_close() {
  throw std::runtime_error("close failed");
  co_return;
}

task<> close_after_one(int* live, bool* cleaned) {
  auto values = holding(live);
  values.at_close(note(cleaned));
  int* const first = co_await values.next();
  CHECK(first != nullptr);
  co_await values.close();
  CHECK(*live == 0);
  CHECK(*cleaned);
  int* const after = co_await values.next();
  CHECK(after == nullptr);
  co_await values.close();  // again: nothing to do
}

task<bool> token_is(async_generator<std::stop_token>* values, std::stop_token expected) {
  std::stop_token* const found = co_await values->next();
  co_return *found == expected;
}

task<> next_in_other_environments() {
  auto values = tokens();
  std::stop_source first;
  std::stop_source second;
  environment given = co_await current_environment();
  std::stop_token seen_first;
  {
    given.stop = first.get_token();
    auto asked = values.next();
    auto running = std::move(asked).under(given);
    std::stop_token* const found = co_await running;
    CHECK(*found == first.get_token());
  }
  {
    given.stop = second.get_token();
    auto asked = values.next();
    auto running = std::move(asked).under(given);
    std::stop_token* const found = co_await running;
    CHECK(*found == second.get_token());
  }
  const bool ours = co_await token_is(&values, {});
  CHECK(ours);
}

async_generator<int> with_cleanup(async_generator<int> values, bool* cleaned) {
  values.at_close(note(cleaned));
  return values;
}

struct throw_on {
  int limit;
  int* seen;
  void operator()(int value) const {
    ++*seen;
    if (value == limit) throw std::runtime_error("body failed");
  }
};

task<> add_later(int value, int* total) {
  *total += value;
  co_return;
}

struct add_by_task {
  int* total;
  task<> operator()(int value) const { return add_later(value, total); }
};

#if defined(__clang__)
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wdeprecated-coroutine"
task<int> sum_by_for_co_await(async_generator<int> values) {
  int total = 0;
  for co_await (int& value : values) total += value;
  co_return total;
}
#pragma clang diagnostic pop
#endif

}  // namespace

TEST_SUITE("unit") {
  TEST_CASE("a generator gives its values, then null") {
    CHECK(sync_wait(sum(count_to(4))) == 10);
    CHECK(sync_wait(sum(count_to(0))) == 0);
  }

  TEST_CASE("an empty generator gives null and closes") {
    CHECK(sync_wait(sum(async_generator<int>())) == 0);
    async_generator<int> none;
    CHECK_NOTHROW(sync_wait(none.close()));
  }

  TEST_CASE("a generator throws once, then gives null") {
    std::string message;
    CHECK(sync_wait(sum_until_error(count_then_throw(3), &message)) == 6);
    CHECK(message == "ran dry");
    message.clear();
    CHECK(sync_wait(sum_until_error(count_then_throw(0), &message)) == 0);
    CHECK(message == "ran dry");
  }

  TEST_CASE("what a generator yields may be moved out") {
    const auto kept = sync_wait(move_out(owned(3)));
    REQUIRE(kept.size() == 3);
    CHECK(*kept[2] == 3);
  }

  TEST_CASE("a yielded variable is used in place, a yielded temporary lives until the next step") {
    const auto seen = sync_wait(append_to_each(named_and_temporary()));
    CHECK(seen == std::vector<std::string>{"kept+", "kept+!+", "temporary+"});
  }

  TEST_CASE("dropping a generator half-way destroys what its body holds") {
    int live = 0;
    sync_wait(take_one_and_drop(&live));
    CHECK(live == 0);
  }

  TEST_CASE("dropping a generator that never started runs nothing of it") {
    int live = 0;
    bool cleaned = false;
    {
      auto values = holding(&live);
      values.at_close(note(&cleaned));
    }
    CHECK(live == 0);
    CHECK(!cleaned);
  }

  TEST_CASE("close ends the body, awaits the clean-up, and may be called again") {
    int live = 0;
    bool cleaned = false;
    sync_wait(close_after_one(&live, &cleaned));
    CHECK(cleaned);
  }

  TEST_CASE("assigning to a generator ends the one it held") {
    int live = 0;
    auto values = holding(&live);
    CHECK(sync_wait(values.next()) != nullptr);
    CHECK(live == 1);
    values = count_to(1);
    CHECK(live == 0);
    CHECK(*sync_wait(values.next()) == 1);
    CHECK(sync_wait(values.next()) == nullptr);
  }

  TEST_CASE("the body runs in the environment of the next that resumes it") {
    sync_wait(next_in_other_environments());
  }

  TEST_CASE("for_each hands over every value and closes") {
    bool cleaned = false;
    int total = 0;
    sync_wait(
        for_each(with_cleanup(count_to(4), &cleaned), [&total](int value) { total += value; }));
    CHECK(total == 10);
    CHECK(cleaned);
  }

  TEST_CASE("for_each awaits a body that is a coroutine") {
    int total = 0;
    sync_wait(for_each(count_to(4), add_by_task{&total}));
    CHECK(total == 10);
  }

  TEST_CASE("for_each closes when the body throws, and rethrows that") {
    bool cleaned = false;
    int seen = 0;
    CHECK_THROWS_WITH_AS(
        sync_wait(for_each(with_cleanup(count_to(9), &cleaned), throw_on{2, &seen})), "body failed",
        std::runtime_error);
    CHECK(seen == 2);
    CHECK(cleaned);
  }

  TEST_CASE("for_each closes when the generator throws, and rethrows that") {
    bool cleaned = false;
    int seen = 0;
    CHECK_THROWS_WITH_AS(
        sync_wait(for_each(with_cleanup(count_then_throw(2), &cleaned), throw_on{99, &seen})),
        "ran dry", std::runtime_error);
    CHECK(seen == 2);
    CHECK(cleaned);
  }

  TEST_CASE("for_each throws what closing throws, unless something failed before") {
    int seen = 0;
    auto values = count_to(2);
    values.at_close(throw_at_close());
    CHECK_THROWS_WITH_AS(sync_wait(for_each(std::move(values), throw_on{99, &seen})),
                         "close failed", std::runtime_error);
    auto again = count_to(2);
    again.at_close(throw_at_close());
    CHECK_THROWS_WITH_AS(sync_wait(for_each(std::move(again), throw_on{1, &seen})), "body failed",
                         std::runtime_error);
  }

#if defined(__clang__)
  TEST_CASE("for co_await walks a generator") {
    CHECK(sync_wait(sum_by_for_co_await(count_to(4))) == 10);
  }
#endif
}
