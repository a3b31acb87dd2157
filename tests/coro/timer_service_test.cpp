#include <headrace/coro/timer_service.hpp>

#include <doctest/doctest.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <utility>
#include <vector>

using namespace headrace;

namespace {

constexpr steady_time at(int milliseconds) {
  return steady_time(std::chrono::milliseconds(milliseconds));
}

struct noting_timer final : timer_item {
  noting_timer(std::vector<int>* into, int given) noexcept
      : timer_item(&fire), order(into), number(given) {}
  static void fire(timer_item& item) noexcept {
    auto& self = static_cast<noting_timer&>(item);
    self.order->push_back(self.number);
  }
  std::vector<int>* order;
  int number;
};

struct chaining_timer final : timer_item {
  chaining_timer(timer_queue& owner, timer_item& started, timer_item& cancelled) noexcept
      : timer_item(&fire), queue(owner), starts(started), cancels(cancelled) {}
  static void fire(timer_item& item) noexcept {
    auto& self = static_cast<chaining_timer&>(item);
    self.queue.start(self.starts, at(5));
    self.queue.cancel(self.cancels);
  }
  timer_queue& queue;
  timer_item& starts;
  timer_item& cancels;
};

}  // namespace

TEST_SUITE("unit") {
  TEST_CASE("timers run in the order of their deadlines, and only once due") {
    std::vector<int> order;
    noting_timer first(&order, 1);
    noting_timer second(&order, 2);
    noting_timer third(&order, 3);
    timer_queue queue;
    CHECK(!queue.next());
    queue.start(third, at(30));
    queue.start(first, at(10));
    queue.start(second, at(20));
    CHECK(queue.next() == at(10));
    queue.run_due(at(9));
    CHECK(order.empty());
    queue.run_due(at(20));
    CHECK(order == std::vector<int>{1, 2});
    CHECK(!first.pending());
    CHECK(third.pending());
    CHECK(queue.next() == at(30));
    queue.run_due(at(30));
    CHECK(order == std::vector<int>{1, 2, 3});
    CHECK(!queue.next());
  }

  TEST_CASE("a cancelled timer does not run and may be started again") {
    std::vector<int> order;
    noting_timer item(&order, 1);
    timer_queue queue;
    queue.cancel(item);
    queue.start(item, at(10));
    queue.cancel(item);
    queue.cancel(item);
    CHECK(!item.pending());
    queue.run_due(at(100));
    CHECK(order.empty());
    queue.start(item, at(200));
    queue.run_due(at(200));
    CHECK(order == std::vector<int>{1});
  }

  TEST_CASE("a timer that runs may start and cancel others") {
    std::vector<int> order;
    noting_timer started(&order, 1);
    noting_timer cancelled(&order, 2);
    timer_queue queue;
    chaining_timer chain(queue, started, cancelled);
    queue.start(chain, at(1));
    queue.start(cancelled, at(2));
    queue.run_due(at(10));
    CHECK(order == std::vector<int>{1});
    CHECK(!queue.next());
  }

  TEST_CASE("a random history agrees with a sorted map") {
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
      CAPTURE(seed);
      std::mt19937_64 random(seed);
      const auto below = [&random](int limit) {
        return std::uniform_int_distribution<int>(0, limit - 1)(random);
      };
      std::vector<int> order;
      std::vector<std::unique_ptr<noting_timer>> timers;
      for (int number = 0; number < 64; ++number)
        timers.push_back(std::make_unique<noting_timer>(&order, number));
      timer_queue queue;
      std::multimap<steady_time, int> expected;
      std::map<int, std::multimap<steady_time, int>::iterator> where;
      int now = 0;
      for (int step = 0; step < 4000; ++step) {
        const int number = below(64);
        auto& item = *timers[static_cast<std::size_t>(number)];
        if (const int choice = below(8); choice < 4) {
          if (item.pending()) continue;
          const int deadline = now + below(200);
          queue.start(item, at(deadline));
          where[number] = expected.emplace(at(deadline), number);
        } else if (choice < 7) {
          queue.cancel(item);
          if (const auto found = where.find(number); found != where.end()) {
            expected.erase(found->second);
            where.erase(found);
          }
        } else {
          now += below(40);
          order.clear();
          queue.run_due(at(now));
          // The same set, in the order of the deadlines; which of two equal ones is first does not
          // matter.
          std::multimap<steady_time, int> ran;
          steady_time last = steady_time::min();
          for (const int each : order) {
            const auto found = where.find(each);
            REQUIRE(found != where.end());
            const steady_time deadline = found->second->first;
            CHECK(deadline <= at(now));
            CHECK(last <= deadline);
            last = deadline;
            expected.erase(found->second);
            where.erase(found);
          }
          CHECK((expected.empty() || expected.begin()->first > at(now)));
        }
        CHECK(queue.next().has_value() == !expected.empty());
        if (!expected.empty()) CHECK(*queue.next() == expected.begin()->first);
      }
    }
  }
}
