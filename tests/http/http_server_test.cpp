#include <headrace/http/http_connection.hpp>
#include <headrace/http/http_pool.hpp>
#include <headrace/http/tcp_connector.hpp>
#include <headrace/io/resolver.hpp>

#include <doctest/doctest.h>
#include <support/scripted_server.hpp>
#include <support/test_loop.hpp>

#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace headrace {
namespace {

using namespace std::chrono_literals;
using test::answer;
using test::answer_with;
using test::scripted_server;
using test::seen_request;
using test::steps;
namespace action = test::action;

struct client : test::test_loop {
  resolver names{loop};
  tcp_connector connector{loop, names};
  http_pool pool{loop, connector};
};

http_request get(const scripted_server& server, std::string target = "/") {
  http_request request;
  request.target = std::move(target);
  request.host = server.origin().host_field();
  return request;
}

struct got {
  int status = 0;
  std::string body;
  bool reused = false;
  bool answer_started = false;
  std::string peer;
};

task<result<got>> exchange(http_pool* pool, http_origin origin, http_request request) {
  auto lease = co_await pool->acquire(std::move(origin));
  if (!lease) co_return failure{std::move(lease).error()};
  http_connection& connection = **lease;
  got seen;
  seen.reused = !connection.fresh();
  seen.peer = connection.peer();
  auto head = co_await connection.send(std::move(request));
  if (!head) co_return failure{std::move(head).error()};
  seen.status = head->status();
  auto text = co_await connection.read_text(std::size_t{64} << 20);
  if (!text) co_return failure{std::move(text).error()};
  seen.body = std::move(*text);
  co_return std::move(seen);
}

task<result<std::string>> receive_whole(http_connection* connection, std::size_t size) {
  std::string body(size, '\0');
  std::size_t done = 0;
  while (true) {
    const std::array<iovec, 1> into{iovec{body.data() + done, body.size() - done}};
    if (done == body.size()) co_return std::move(body);
    auto received = co_await connection->receive_body(into);
    if (!received) co_return failure{std::move(received).error()};
    if (*received == 0) co_return body.substr(0, done);
    done += *received;
  }
}

std::string pattern(std::size_t size) {
  std::string text(size, '\0');
  std::uint32_t value = 1;
  for (char& c : text) {
    value = value * 1664525U + 1013904223U;
    c = static_cast<char>(value >> 24);
  }
  return text;
}

task<void> signal_soon(scripted_server* server, std::string name, std::stop_source* stop) {
  co_await sleep_for(10ms);
  if (stop != nullptr) stop->request_stop();
  server->signal(std::move(name));
}

TEST_SUITE("server") {
  TEST_CASE("requests to one origin share a connection") {
    scripted_server server([](const seen_request& request) -> steps {
      return {action::send{answer(200, {}, "you asked for " + request.target)}};
    });
    client here;
    for (int count = 0; count < 5; ++count) {
      const std::string target = "/" + std::to_string(count);
      const auto seen = here.run(exchange(&here.pool, server.origin(), get(server, target)));
      REQUIRE(seen);
      CHECK(seen->status == 200);
      CHECK(seen->body == "you asked for " + target);
      CHECK(seen->reused == (count > 0));
      CHECK(seen->peer == "127.0.0.1:" + std::to_string(server.port()));
    }
    CHECK(server.connections() == 1);
    const auto requests = server.requests();
    REQUIRE(requests.size() == 5);
    CHECK(requests[4].turn == 4);
    CHECK(requests[4].field("host") == server.origin().host_field());
    CHECK(requests[4].field("accept-encoding") == "identity");
  }

  TEST_CASE("a large body arrives whole in its destination") {
    const std::string object = pattern(20 << 20);
    scripted_server server([&object](const seen_request& request) -> steps {
      return {action::send{answer_with(object, request)}};
    });
    client here;
    const auto all = here.run(exchange(&here.pool, server.origin(), get(server)));
    REQUIRE(all);
    CHECK((all->body == object));

    auto request = get(server);
    request.fields.emplace_back("Range", "bytes=1000000-10999999");
    const auto part = here.run(exchange(&here.pool, server.origin(), std::move(request)));
    REQUIRE(part);
    CHECK(part->status == 206);
    CHECK((part->body == object.substr(1'000'000, 10'000'000)));
    CHECK(server.connections() == 1);
  }

  TEST_CASE("an answer in the smallest packets is the same answer") {
    const std::string chunked =
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;x=y\r\nhello\r\n6\r\n world\r\n0\r\nT: x\r\n\r\n";
    scripted_server server([&chunked](const seen_request& request) -> steps {
      if (request.target == "/chunked") return {action::drip{chunked}};
      return {action::drip{answer(200, {}, "hello world")}};
    });
    client here;
    for (const char* target : {"/", "/chunked", "/"}) {
      const auto seen = here.run(exchange(&here.pool, server.origin(), get(server, target)));
      REQUIRE(seen);
      CHECK(seen->body == "hello world");
    }
    CHECK(server.connections() == 1);
  }

  TEST_CASE("a connection that the peer closed while it was idle is not used again") {
    scripted_server server([](const seen_request& request) -> steps {
      if (request.number == 0) return {action::send{answer(200, {}, "one")}, action::close{}};
      if (request.number == 1) return {action::send{answer(200, {}, "two")}, action::reset{}};
      return {action::send{answer(200, {}, "three")}};
    });
    client here;
    for (const char* body : {"one", "two", "three"}) {
      const auto seen = here.run(exchange(&here.pool, server.origin(), get(server)));
      REQUIRE(seen);
      CHECK(seen->body == body);
      CHECK_FALSE(seen->reused);
      if (std::string_view(body) != "three") CHECK(server.wait_for_open_connections(0));
    }
    CHECK(here.pool.stats().stale == 2);
    CHECK(server.connections() == 3);
  }

  TEST_CASE("a connection on which the peer spoke unasked is not used again") {
    scripted_server server([](const seen_request& request) -> steps {
      if (request.number > 0) return {action::send{answer(200, {}, "right")}};
      return {action::send{answer(200, {}, "first")}, action::wait_for{"idle"},
              action::send{answer(200, {}, "poison")}, action::signal{"poisoned"}, action::close{}};
    });
    client here;
    REQUIRE(here.run(exchange(&here.pool, server.origin(), get(server))));
    server.signal("idle");
    CHECK(server.wait_for_open_connections(0));
    const auto seen = here.run(exchange(&here.pool, server.origin(), get(server)));
    REQUIRE(seen);
    CHECK(seen->body == "right");
    CHECK(here.pool.stats().stale == 1);
  }

  TEST_CASE("a reused connection that dies before its answer can be told from others") {
    scripted_server server([](const seen_request& request) -> steps {
      if (request.turn == 0) return {action::send{answer(200, {}, "fine")}};
      return {action::reset{}};
    });
    client here;
    REQUIRE(here.run(exchange(&here.pool, server.origin(), get(server))));
    auto lease = here.run(here.pool.acquire(server.origin())).value();
    CHECK_FALSE(lease->fresh());
    const auto head = here.run(lease->send(get(server)));
    REQUIRE_FALSE(head);
    CHECK(head.error().kind() == errc::connect_error);
    CHECK_FALSE(lease->answer_started());
    CHECK_FALSE(lease->reusable());
  }

  TEST_CASE("a reset in a body and an early end are both a truncated body") {
    scripted_server server([](const seen_request& request) -> steps {
      const std::string half =
          "HTTP/1.1 206 Partial Content\r\nContent-Length: 100\r\n\r\n" + std::string(50, 'x');
      if (request.target == "/reset")
        return {action::send{half}, action::wait_for{"received"}, action::reset{}};
      return {action::send{half}, action::half_close{}, action::stall{}};
    });
    client here;
    for (const char* target : {"/reset", "/close"}) {
      auto lease = here.run(here.pool.acquire(server.origin())).value();
      REQUIRE(here.run(lease->send(get(server, target))));
      const auto first = here.run(receive_whole(&*lease, 50));
      REQUIRE(first);
      CHECK(*first == std::string(50, 'x'));
      server.signal("received");
      const auto rest = here.run(receive_whole(&*lease, 50));
      REQUIRE_FALSE(rest);
      CHECK(rest.error().kind() == errc::truncated);
      CHECK(rest.error().reason().find("after 50 of 100 bytes") != std::string::npos);
      CHECK_FALSE(lease->reusable());
    }
  }

  TEST_CASE("a connection that is closed or reset at once is a connection error") {
    scripted_server server([](const seen_request&) -> steps { return {}; },
                           {.on_accept = [](std::size_t connection) -> steps {
                              if (connection == 0) return {action::close{}};
                              return {action::reset{}};
                            },
                            .address = "127.0.0.1"});
    client here;
    for (int count = 0; count < 2; ++count) {
      const auto seen = here.run(exchange(&here.pool, server.origin(), get(server)));
      REQUIRE_FALSE(seen);
      CHECK(seen.error().kind() == errc::connect_error);
    }
  }

  TEST_CASE("a stop ends a wait for a head and for a body, and the buffers are free afterwards") {
    scripted_server server([](const seen_request& request) -> steps {
      if (request.target == "/head") return {action::stall{}};
      return {action::send{"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\nabc"},
              action::stall{}};
    });
    client here;
    for (const char* target : {"/head", "/body"}) {
      std::stop_source stop;
      async_scope scope;
      scope.spawn(here.loop, signal_soon(&server, "unused", &stop));
      const auto seen = here.run(
          with_stop(stop.get_token(), exchange(&here.pool, server.origin(), get(server, target))));
      REQUIRE_FALSE(seen);
      CHECK(seen.error().kind() == errc::cancelled);
      CHECK(server.wait_for_open_connections(0));
    }
    CHECK(here.pool.stats().idle == 0);
  }

  TEST_CASE("answers wait for a signal, and other exchanges go on meanwhile") {
    scripted_server server([](const seen_request& request) -> steps {
      if (request.target == "/slow")
        return {action::wait_for{"go"}, action::send{answer(200, {}, "slow")}};
      return {action::send{answer(200, {}, "fast")}, action::signal{"go"}};
    });
    client here;
    auto slow = here.run(here.pool.acquire(server.origin())).value();
    async_scope scope;
    result<http_response_head> head = failure{error(errc::internal, "not yet")};
    struct waiting {
      static task<void> run(http_connection* connection, http_request request,
                            result<http_response_head>* into) {
        auto received = co_await connection->send(std::move(request));
        *into = std::move(received);
      }
    };
    scope.spawn(here.loop, waiting::run(&*slow, get(server, "/slow"), &head));
    const auto fast = here.run(exchange(&here.pool, server.origin(), get(server, "/fast")));
    REQUIRE(fast);
    CHECK(fast->body == "fast");
    here.run(scope.join());
    REQUIRE(head);
    CHECK(head->status() == 200);
    CHECK(server.connections() == 2);
  }

  TEST_CASE("requests carry a body") {
    scripted_server server([](const seen_request& request) -> steps {
      return {action::send{answer(200, {}, request.method + " " + request.body)}};
    });
    client here;
    auto request = get(server);
    request.method = "POST";
    request.body = pattern(100'000);
    const auto seen = here.run(exchange(&here.pool, server.origin(), request));
    REQUIRE(seen);
    CHECK((seen->body == "POST " + request.body));
  }

  TEST_CASE("idle connections are closed by a timer of the loop") {
    scripted_server server(
        [](const seen_request&) -> steps { return {action::send{answer(200, {}, "x")}}; });
    test::test_loop here;
    resolver names(here.loop);
    tcp_connector connector(here.loop, names);
    http_pool pool(here.loop, connector, {.idle_limit = 10ms, .idle_per_origin = 4});
    REQUIRE(here.run(exchange(&pool, server.origin(), get(server))));
    struct waiting {
      static task<void> until_none_is_idle(http_pool* watched) {
        while (watched->stats().idle > 0) co_await sleep_for(1ms);
      }
    };
    here.run(waiting::until_none_is_idle(&pool));
    CHECK(pool.stats().expired == 1);
    CHECK(server.wait_for_open_connections(0));
  }
}

}  // namespace
}  // namespace headrace
