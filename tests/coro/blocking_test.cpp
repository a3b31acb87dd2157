#include <headrace/coro/blocking.hpp>

#include "thread_executor.hpp"

#include <headrace/coro/with.hpp>

#include <doctest/doctest.h>

#include <memory>
#include <ranges>
#include <stdexcept>
#include <vector>

using namespace headrace;

namespace {

task<int> twice(int value) { co_return 2 * value; }

async_generator<int> doubled_elsewhere(executor* other, int last) {
  for (int value = 1; value <= last; ++value) {
    int result = co_await on(*other, twice(value));
    co_yield result;
  }
}

async_generator<std::unique_ptr<int>> owned(int last, std::shared_ptr<int> held) {
  for (int value = 1; value <= last; ++value) co_yield std::make_unique<int>(value + *held);
}

async_generator<int> fails_after_one() {
  co_yield 1;
  throw std::runtime_error("ran dry");
}

static_assert(std::ranges::input_range<blocking_range<int>>);

}  // namespace

TEST_SUITE("unit") {
  TEST_CASE("a blocking range gives what is made on another thread") {
    test::thread_executor other;
    std::vector<int> seen;
    for (const int value : blocking(doubled_elsewhere(&other.get(), 5))) seen.push_back(value);
    CHECK(seen == std::vector<int>{2, 4, 6, 8, 10});
  }

  TEST_CASE("a blocking range over nothing is empty") {
    test::thread_executor other;
    for ([[maybe_unused]] const int value : blocking(doubled_elsewhere(&other.get(), 0)))
      FAIL("nothing was expected");
  }

  TEST_CASE("leaving a blocking range early frees its rest") {
    const auto held = std::make_shared<int>(10);
    std::vector<std::unique_ptr<int>> kept;
    for (auto& value : blocking(owned(5, held))) {
      kept.push_back(std::move(value));
      if (kept.size() == 2) break;
    }
    CHECK(*kept[1] == 12);
    CHECK(held.use_count() == 1);
  }

  TEST_CASE("a blocking range throws what its generator throws") {
    int seen = 0;
    const auto walk = [&seen] {
      for (const int value : blocking(fails_after_one())) seen += value;
    };
    CHECK_THROWS_WITH_AS(walk(), "ran dry", std::runtime_error);
    CHECK(seen == 1);
  }
}
