#include <headrace/base/log.hpp>

#include <doctest/doctest.h>

#include <atomic>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

using namespace headrace;

namespace {

/// Collects lines and takes the sink away again at the end.
struct collected {
  explicit collected(log_level threshold) {
    set_log_sink(
        [this](log_level level, std::string_view line) { lines.emplace_back(level, line); },
        threshold);
  }
  collected(const collected&) = delete;
  collected& operator=(const collected&) = delete;
  ~collected() { set_log_sink({}); }
  std::vector<std::pair<log_level, std::string>> lines;
};

}  // namespace

TEST_SUITE("unit") {
  TEST_CASE("without a sink nothing is logged") {
    set_log_sink({});
    CHECK(!log_enabled(log_level::error));
    CHECK(!log_enabled(log_level::off));
    CHECK_NOTHROW(log(log_level::error, "into the void"));
  }

  TEST_CASE("lines at or above the level reach the sink") {
    const collected sink(log_level::warning);
    CHECK(!log_enabled(log_level::debug));
    CHECK(!log_enabled(log_level::info));
    CHECK(log_enabled(log_level::warning));
    CHECK(log_enabled(log_level::error));
    CHECK(!log_enabled(log_level::off));
    log(log_level::info, "quiet");
    log(log_level::warning, "careful");
    log(log_level::error, "broken");
    log(log_level::off, "never");
    REQUIRE(sink.lines.size() == 2);
    CHECK(sink.lines[0] == std::pair<log_level, std::string>(log_level::warning, "careful"));
    CHECK(sink.lines[1].second == "broken");
  }

  TEST_CASE("a sink may be set to off, replaced and taken away") {
    std::atomic<int> first{0};
    std::atomic<int> second{0};
    set_log_sink([&first](log_level, std::string_view) { ++first; }, log_level::off);
    log(log_level::error, "line");
    set_log_sink([&first](log_level, std::string_view) { ++first; });
    log(log_level::info, "line");
    log(log_level::debug, "line");
    set_log_sink([&second](log_level, std::string_view) { ++second; }, log_level::debug);
    log(log_level::debug, "line");
    set_log_sink({});
    log(log_level::error, "line");
    CHECK(first == 1);
    CHECK(second == 1);
  }

  TEST_CASE("threads log one line at a time, also while the sink changes") {
    // Not atomic: the log itself keeps the calls apart.
    int lines = 0;
    const auto count = [&lines](log_level, std::string_view) { ++lines; };
    set_log_sink(count);
    std::vector<std::thread> threads;
    for (int at = 0; at < 4; ++at) {
      threads.emplace_back([] {
        for (int each = 0; each < 500; ++each) log(log_level::info, "line");
      });
    }
    for (int round = 0; round < 50; ++round) set_log_sink(count);
    for (auto& thread : threads) thread.join();
    set_log_sink({});
    CHECK(lines == 2000);
  }
}
