#include "storage/child_process.hpp"

#include <doctest/doctest.h>

#include <stop_token>
#include <string>
#include <thread>

namespace headrace {
namespace {

using namespace std::chrono_literals;

result<child_outcome> run(const std::vector<std::string>& arguments,
                          std::chrono::milliseconds limit = 30s, std::size_t most = 1000,
                          const std::stop_token& stop = {}) {
  return run_child(arguments, limit, most, stop);
}

TEST_SUITE("unit") {
  TEST_CASE("a program's output and status come back, and its standard error does not") {
    const auto ran = run({"/bin/sh", "-c", "echo out; echo err >&2; read x; exit 7"});
    REQUIRE(ran.has_value());
    CHECK(ran->output == "out\n");
    CHECK(ran->exit_status == 7);
  }

  TEST_CASE("arguments reach the program as they are, without a shell") {
    const auto ran = run({"printf", "%s|", "a b", "$HOME", "*", ""});
    REQUIRE(ran.has_value());
    CHECK(ran->output == "a b|$HOME|*||");
  }

  TEST_CASE("a program that a signal ends has a status as shells have it") {
    const auto ran = run({"/bin/sh", "-c", "kill -TERM $$"});
    REQUIRE(ran.has_value());
    CHECK(ran->exit_status == 128 + 15);
  }

  TEST_CASE("signals that we block are not blocked in the program") {
    const auto ran = run({"/bin/sh", "-c", "grep SigBlk /proc/self/status"});
    REQUIRE(ran.has_value());
    CHECK(ran->output == "SigBlk:\t0000000000000000\n");
  }

  TEST_CASE("a program that is not there, or may not be run, is named") {
    const auto missing = run({"/no/such/program"});
    REQUIRE_FALSE(missing.has_value());
    CHECK(missing.error().kind() == errc::not_found);
    CHECK(missing.error().reason().find("/no/such/program") != std::string::npos);
    const auto denied = run({"/etc/passwd"});
    REQUIRE_FALSE(denied.has_value());
    CHECK(denied.error().kind() == errc::access_denied);
  }

  TEST_CASE("more output than is allowed is an error, and ends the program") {
    const auto ran = run({"/bin/sh", "-c", "while :; do echo 0123456789; done"});
    REQUIRE_FALSE(ran.has_value());
    CHECK(ran.error().kind() == errc::protocol_error);
  }

  TEST_CASE("a program that does not end is ended, with what it has started") {
    for (const auto* const script : {"sleep 1000 & sleep 1000", "exec >&-; sleep 1000"}) {
      const auto ran = run({"/bin/sh", "-c", script}, 50ms);
      REQUIRE_FALSE(ran.has_value());
      CHECK(ran.error().kind() == errc::timeout);
    }
  }

  TEST_CASE("a stop ends it") {
    std::stop_source stop;
    std::jthread stopper([&stop] { stop.request_stop(); });
    const auto ran = run({"sleep", "1000"}, 30s, 1000, stop.get_token());
    REQUIRE_FALSE(ran.has_value());
    CHECK(ran.error().kind() == errc::cancelled);
  }
}

}  // namespace
}  // namespace headrace
