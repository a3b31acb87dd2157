#include "http/connect_first.hpp"

#include <headrace/base/error.hpp>

#include <doctest/doctest.h>
#include <support/scripted_server.hpp>
#include <support/test_loop.hpp>
#include <support/useless_addresses.hpp>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace headrace {
namespace {

using namespace std::chrono_literals;
using detail::connect_first;
using detail::connect_outcome;
using detail::in_turn;
using test::at;
using test::black_hole;
using test::dead_address;

test::steps silence(const test::seen_request&) { return {}; }

task<connect_outcome> connect_then_stop(io_context* loop, std::vector<endpoint> addresses) {
  std::stop_source stop;
  async_scope scope;
  struct stopping {
    static task<void> soon(std::stop_source* source) {
      co_await sleep_for(10ms);
      source->request_stop();
    }
  };
  scope.spawn(*loop, stopping::soon(&stop));
  auto outcome =
      co_await with_stop(stop.get_token(), connect_first(*loop, std::move(addresses), 10s, 250ms));
  co_await scope.join();
  co_return outcome;
}

TEST_SUITE("unit") {
  TEST_CASE("families take turns, beginning with that of the first address") {
    const endpoint six_a = at("2001:db8::a", 1), six_b = at("2001:db8::b", 1);
    const endpoint four_a = at("192.0.2.1", 1), four_b = at("192.0.2.2", 1);
    const endpoint four_c = at("192.0.2.3", 1);
    using order = std::vector<endpoint>;
    CHECK(in_turn({six_a, six_b, four_a, four_b, four_c}, 0) ==
          order{six_a, four_a, six_b, four_b, four_c});
    CHECK(in_turn({four_a, six_a, four_b, four_c, six_b}, 0) ==
          order{four_a, six_a, four_b, six_b, four_c});
    CHECK(in_turn({six_a, six_b}, 0) == order{six_a, six_b});
    CHECK(in_turn({four_a}, 7) == order{four_a});
    CHECK(in_turn({}, 7).empty());
  }

  TEST_CASE("within a family each address comes first once") {
    const endpoint six = at("2001:db8::a", 1);
    const endpoint four_a = at("192.0.2.1", 1), four_b = at("192.0.2.2", 1);
    const endpoint four_c = at("192.0.2.3", 1);
    using order = std::vector<endpoint>;
    CHECK(in_turn({four_a, four_b, four_c, six}, 0) == order{four_a, six, four_b, four_c});
    CHECK(in_turn({four_a, four_b, four_c, six}, 1) == order{four_b, six, four_c, four_a});
    CHECK(in_turn({four_a, four_b, four_c, six}, 5) == order{four_c, six, four_a, four_b});
  }
}

TEST_SUITE("server") {
  TEST_CASE("the first address that answers is taken") {
    test::scripted_server server(silence);
    test::test_loop here;
    auto outcome = here.run(connect_first(here.loop, {at("127.0.0.1", server.port())}, 5s, 250ms));
    REQUIRE(outcome.stream);
    CHECK(outcome.stream->peer() == "127.0.0.1:" + std::to_string(server.port()));
    CHECK(outcome.useless.empty());
  }

  TEST_CASE("a dead address costs nothing but its attempt") {
    test::scripted_server server(silence);
    const dead_address dead;
    test::test_loop here;
    auto outcome = here.run(connect_first(
        here.loop, {dead.address, dead.address, at("127.0.0.1", server.port())}, 5s, 1h));
    REQUIRE(outcome.stream);
    CHECK(outcome.useless == std::vector<endpoint>{dead.address, dead.address});
  }

  TEST_CASE("an address that answers nothing does not hold up the others, and is remembered") {
    test::scripted_server server(silence);
    const black_hole hole;
    test::test_loop here;
    auto outcome = here.run(
        connect_first(here.loop, {hole.address, at("127.0.0.1", server.port())}, 1h, 20ms));
    REQUIRE(outcome.stream);
    CHECK(outcome.stream->peer() == "127.0.0.1:" + std::to_string(server.port()));
    CHECK(outcome.useless == std::vector<endpoint>{hole.address});
  }

  TEST_CASE("no address that answers is the error of the last one") {
    const dead_address dead;
    test::test_loop here;
    auto outcome = here.run(connect_first(here.loop, {dead.address, dead.address}, 5s, 250ms));
    CHECK_FALSE(outcome.stream);
    CHECK(outcome.failed == std::errc::connection_refused);
    CHECK(outcome.useless.size() == 2);

    const black_hole hole;
    outcome = here.run(connect_first(here.loop, {hole.address}, 20ms, 250ms));
    CHECK_FALSE(outcome.stream);
    CHECK(outcome.failed == std::errc::timed_out);
  }

  TEST_CASE("a stop ends connecting, whichever attempts are under way") {
    const black_hole hole;
    test::test_loop here;
    for (const auto& addresses :
         {std::vector{hole.address}, std::vector{hole.address, hole.address}}) {
      auto outcome = here.run(connect_then_stop(&here.loop, addresses));
      CHECK_FALSE(outcome.stream);
      CHECK(kind_of(outcome.failed) == errc::cancelled);
      CHECK(outcome.useless.empty());
    }
  }
}

}  // namespace
}  // namespace headrace
