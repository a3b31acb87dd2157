#include "http/connect_first.hpp"

#include <headrace/base/error.hpp>

#include <doctest/doctest.h>
#include <netinet/in.h>
#include <support/scripted_server.hpp>
#include <support/test_loop.hpp>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace headrace {
namespace {

using namespace std::chrono_literals;
using detail::connect_first;
using detail::connect_outcome;

endpoint at(const char* address, std::uint16_t port) {
  return *endpoint::from_literal(address, port);
}

/// An address on which nobody listens: it is taken, and its owner does not listen.
class dead_address {
 public:
  dead_address() : number_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const auto any = at("127.0.0.1", 0);
    REQUIRE(::bind(number_, any.data(), any.size()) == 0);
    sockaddr_storage storage{};
    socklen_t size = sizeof storage;
    REQUIRE(::getsockname(number_, reinterpret_cast<sockaddr*>(&storage), &size) == 0);
    address = endpoint(reinterpret_cast<sockaddr*>(&storage), size);
  }
  ~dead_address() { ::close(number_); }
  dead_address(const dead_address&) = delete;
  dead_address& operator=(const dead_address&) = delete;
  endpoint address;

 protected:
  int number_;
};

/// An address that answers nothing at all: a listener whose queue is full, so that the kernel drops
/// every SYN.
class black_hole : public dead_address {
 public:
  black_hole() {
    REQUIRE(::listen(number_, 0) == 0);
    for (int& filler : fillers_) {
      filler = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
      const int begun = ::connect(filler, address.data(), address.size());
      REQUIRE((begun == 0 || errno == EINPROGRESS));
    }
  }
  ~black_hole() {
    for (const int filler : fillers_) ::close(filler);
  }

 private:
  std::array<int, 4> fillers_{};
};

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
