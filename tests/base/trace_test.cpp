#include <headrace/base/trace.hpp>

#include <headrace/base/clock.hpp>

#include <doctest/doctest.h>

#include <chrono>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

using namespace headrace;
using namespace std::string_view_literals;

namespace {

class hand_clock final : public headrace::clock {
 public:
  [[nodiscard]] steady_time now() const noexcept override { return now_; }
  [[nodiscard]] system_time wall() const noexcept override { return {}; }
  void advance(std::chrono::nanoseconds by) noexcept { now_ += by; }

 private:
  steady_time now_ = steady_time(std::chrono::hours(5));
};

std::size_t count(std::string_view text, std::string_view part) {
  std::size_t found = 0;
  for (auto at = text.find(part); at != std::string_view::npos; at = text.find(part, at + 1))
    ++found;
  return found;
}

}  // namespace

TEST_SUITE("unit") {
  TEST_CASE("a trace holds spans, instants and counters at their times") {
    hand_clock time;
    trace events(time);
    CHECK(events.now() == 0);
    const auto track = events.track("connection 1");
    time.advance(std::chrono::microseconds(10));
    const auto began = events.now();
    CHECK(began == 10);
    time.advance(std::chrono::nanoseconds(25'999));
    events.span(track, "range", began, R"("bytes":16)");
    events.instant(track, "retry");
    events.counter("in flight", -3);
    CHECK(
        events.to_json() ==
        R"({"displayTimeUnit":"ms","traceEvents":[{"ph":"M","pid":1,"tid":0,"name":"process_name","args":{"name":"headrace"}})"
        R"(,{"ph":"M","pid":1,"tid":1,"name":"thread_name","args":{"name":"connection 1"}})"
        ",\n"
        R"({"ph":"X","pid":1,"tid":1,"ts":10,"dur":25,"name":"range","args":{"bytes":16}})"
        ",\n"
        R"({"ph":"i","pid":1,"tid":1,"ts":35,"s":"t","name":"retry"})"
        ",\n"
        R"({"ph":"C","pid":1,"tid":0,"ts":35,"name":"in flight","args":{"value":-3}})"
        "]}\n");
  }

  TEST_CASE("names cannot break out of the JSON") {
    trace events;
    const auto track = events.track("a\"b\\c\n");
    events.instant(track, "\"},{\"");
    const auto json = events.to_json();
    CHECK(json.find(R"("a\"b\\c\u000a")") != std::string::npos);
    CHECK(json.find(R"("\"},{\"")") != std::string::npos);
  }

  TEST_CASE("events come from many threads") {
    trace events;
    std::vector<std::thread> threads;
    for (int at = 0; at < 4; ++at) {
      threads.emplace_back([&events] {
        const auto track = events.track("row");
        for (int each = 0; each < 500; ++each) events.span(track, "step", events.now());
      });
    }
    for (auto& thread : threads) thread.join();
    const auto json = events.to_json();
    CHECK(count(json, R"("ph":"X")") == 2000);
    CHECK(count(json, R"("name":"row")") == 4);
  }

  TEST_CASE("a JSON string keeps valid UTF-8 and replaces what is not") {
    CHECK(json_quote("") == "\"\"");
    CHECK(json_quote("plain /text'") == "\"plain /text'\"");
    CHECK(json_quote("\"\\") == R"("\"\\")");
    CHECK(json_quote("\t\n\0\x1f\x7f"sv) == R"("\u0009\u000a\u0000\u001f\u007f")");
    // One character of each length, and the ends of the ranges.
    for (const auto valid :
         {"\xc3\xa9"sv, "\xe2\x82\xac"sv, "\xf0\x9f\x8c\x8a"sv, "\xc2\x80"sv, "\xe0\xa0\x80"sv,
          "\xed\x9f\xbf"sv, "\xee\x80\x80"sv, "\xf0\x90\x80\x80"sv, "\xf4\x8f\xbf\xbf"sv}) {
      CAPTURE(valid);
      CHECK(json_quote(valid) == "\"" + std::string(valid) + "\"");
    }
    // Overlong forms, surrogates, past the end, a stray continuation, a cut sequence.
    for (const auto& [invalid, replaced] :
         {std::pair{"\xc0\x80"sv, 2}, std::pair{"\xc1\xbf"sv, 2}, std::pair{"\xe0\x9f\xbf"sv, 3},
          std::pair{"\xed\xa0\x80"sv, 3}, std::pair{"\xf0\x8f\xbf\xbf"sv, 4},
          std::pair{"\xf4\x90\x80\x80"sv, 4}, std::pair{"\xf5\x80\x80\x80"sv, 4},
          std::pair{"\x80"sv, 1}, std::pair{"\xff"sv, 1}, std::pair{"\xe2\x82"sv, 2},
          std::pair{"\xf0\x9f\x8c"sv, 3}, std::pair{"\xc3"sv, 1}}) {
      std::string expected = "\"";
      for (int at = 0; at < replaced; ++at) expected += "\\ufffd";
      expected += "\"";
      CHECK(json_quote(invalid) == expected);
    }
    CHECK(json_quote("a\xc3(b") == "\"a\\ufffd(b\"");
  }

  TEST_CASE("random numbers lie in [0, 1), repeat from their seed and differ between seeds") {
    const auto first = make_random_source(7);
    const auto second = make_random_source(7);
    const auto other = make_random_source(8);
    std::set<double> seen;
    int low = 0;
    int equal = 0;
    for (int at = 0; at < 1000; ++at) {
      const double number = first->uniform();
      CHECK(number >= 0);
      CHECK(number < 1);
      CHECK(second->uniform() == number);
      if (other->uniform() == number) ++equal;
      if (number < 0.5) ++low;
      seen.insert(number);
    }
    CHECK(seen.size() == 1000);
    CHECK(equal == 0);
    CHECK(low > 400);
    CHECK(low < 600);
    CHECK(make_random_source()->uniform() < 1);
  }
}
