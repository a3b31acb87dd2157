#include "stream/concurrency.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <vector>

namespace headrace::detail {
namespace {

using namespace std::chrono_literals;

/// A transfer that reaches `rate(connections)` bytes a second, for `seconds`, told of a range every
/// 5 ms.
std::vector<unsigned> simulate(concurrency_control& control,
                               const std::function<double(unsigned)>& rate, int seconds = 30) {
  steady_time now = steady_time{} + 1000s;
  std::vector<unsigned> course = {control.wanted()};
  for (int step = 0; step < seconds * 200; ++step) {
    now += 5ms;
    const unsigned before = control.wanted();
    const bool changed =
        control.arrived(static_cast<std::uint64_t>(rate(control.wanted()) * 0.005), now);
    CHECK(changed == (control.wanted() != before));
    if (changed) course.push_back(control.wanted());
  }
  return course;
}

TEST_SUITE("unit") {
  TEST_CASE("concurrency never leaves its bounds") {
    for (const unsigned most : {1U, 2U, 7U, 8U, 9U, 32U, 1000U}) {
      concurrency_control control(most);
      CHECK(control.wanted() >= 1);
      for (const unsigned wanted : simulate(control, [](unsigned at) { return 50e6 * at; })) {
        CHECK(wanted >= 1);
        CHECK(wanted <= most);
      }
    }
  }

  TEST_CASE("each connection adds throughput: all that are allowed are used") {
    concurrency_control control(32);
    const auto course = simulate(control, [](unsigned at) { return 40e6 * at; });
    CHECK(control.wanted() == 32);
    CHECK(std::ranges::is_sorted(course));
  }

  TEST_CASE("more connections add nothing: it goes back to what was enough") {
    concurrency_control control(32);
    const unsigned initial = control.wanted();
    simulate(control, [](unsigned) { return 4e9; });
    CHECK(control.wanted() <= initial);
  }

  TEST_CASE("more connections are slower: it goes back to what was best") {
    concurrency_control control(32);
    const unsigned initial = control.wanted();
    simulate(control, [initial](unsigned at) { return at <= initial ? 4e9 : 3e9; });
    CHECK(control.wanted() <= initial);
  }

  TEST_CASE("it stops about where the line is full") {
    concurrency_control control(64);
    simulate(control, [](unsigned at) { return 100e6 * std::min(at, 20U); });
    CHECK(control.wanted() >= 16);
    CHECK(control.wanted() <= 32);
  }

  TEST_CASE("it comes to rest") {
    concurrency_control control(32);
    simulate(control, [](unsigned at) { return 40e6 * at; });
    const auto later = simulate(control, [](unsigned at) { return 40e6 * at; });
    CHECK(later.size() == 1);
  }

  TEST_CASE("nothing is concluded from bytes that arrive at one instant, or from none") {
    concurrency_control control(32);
    const unsigned initial = control.wanted();
    const steady_time now = steady_time{} + 1000s;
    for (int step = 0; step < 1000; ++step) CHECK_FALSE(control.arrived(16 << 20, now));
    for (int step = 0; step < 1000; ++step) CHECK_FALSE(control.arrived(0, now + step * 1ns));
    CHECK(control.wanted() == initial);
  }
}

}  // namespace
}  // namespace headrace::detail
