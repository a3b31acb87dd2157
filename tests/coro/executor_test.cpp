#include <headrace/coro/executor.hpp>

#include <doctest/doctest.h>

#include <vector>

using namespace headrace;

namespace {

struct noting_item final : work_item {
  noting_item(std::vector<int>* into, int given) noexcept
      : work_item(&note), order(into), number(given) {}
  static void note(work_item& item) noexcept {
    auto& self = static_cast<noting_item&>(item);
    self.order->push_back(self.number);
  }
  std::vector<int>* order;
  int number;
};

}  // namespace

TEST_SUITE("unit") {
  TEST_CASE("a work queue is first in, first out, also after it was empty") {
    std::vector<int> order;
    noting_item first(&order, 1);
    noting_item second(&order, 2);
    noting_item third(&order, 3);
    work_queue queue;
    CHECK(queue.empty());
    CHECK(queue.pop() == nullptr);
    queue.push(first);
    queue.push(second);
    CHECK(queue.pop() == &first);
    queue.push(third);
    queue.push(first);
    CHECK(queue.pop() == &second);
    CHECK(queue.pop() == &third);
    CHECK(queue.pop() == &first);
    CHECK(queue.pop() == nullptr);
    queue.push(second);
    CHECK(!queue.empty());
    CHECK(queue.pop() == &second);
    CHECK(queue.empty());
  }

  TEST_CASE("the inline executor runs at once and has no timers") {
    std::vector<int> order;
    noting_item item(&order, 1);
    inline_executor here;
    here.post(item);
    CHECK(order == std::vector<int>{1});
    CHECK(here.timers() == nullptr);
  }
}
