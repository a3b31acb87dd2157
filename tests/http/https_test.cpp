#include <headrace/coro/async_scope.hpp>
#include <headrace/http/http_connection.hpp>
#include <headrace/http/http_pool.hpp>
#include <headrace/http/tcp_connector.hpp>
#include <headrace/io/blocking_pool.hpp>
#include <headrace/io/resolver.hpp>

#include <doctest/doctest.h>
#include <support/certificates.hpp>
#include <support/checkpoint.hpp>
#include <support/scripted_server.hpp>
#include <support/test_loop.hpp>

#include <algorithm>
#include <array>
#include <filesystem>
#include <iterator>
#include <memory>
#include <stop_token>
#include <string>
#include <thread>
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

const test::authority& trusted() {
  static const test::authority made;
  return made;
}

const test::temporary_directory& directory() {
  static const test::temporary_directory made;
  return made;
}

/// Trusts the authority of these tests.
std::shared_ptr<const network_settings> network(const std::string& file = "ca.pem") {
  if (file == "ca.pem") directory().write(file, trusted().certificate());
  network_settings settings;
  settings.tls.ca_file = directory().path_of(file);
  return std::make_shared<const network_settings>(settings);
}

scripted_server::options tls(int version = TLS1_3_VERSION, test::certificate_form form = {}) {
  if (form.names.empty()) form.names = {"DNS:localhost", "IP:127.0.0.1"};
  test::tls_server_options given;
  given.self = trusted().issue(form);
  given.least_version = given.most_version = version;
  scripted_server::options options;
  options.tls = given;
  return options;
}

http_route to(const scripted_server& server, const std::string& host = "localhost") {
  return {http_origin{"https", host, server.port()}, network()};
}

struct client : test::test_loop {
  using test_loop::test_loop;
  resolver names{loop};
  tcp_connector connector{loop, names};
  http_pool pool{loop, connector};
};

http_request get(const std::string& target = "/") {
  http_request request;
  request.target = target;
  request.host = "localhost";
  return request;
}

task<result<std::string>> exchange(http_pool* pool, http_route route, http_request request) {
  auto lease = co_await pool->acquire(std::move(route));
  if (!lease) co_return failure{std::move(lease).error()};
  http_connection& connection = **lease;
  auto head = co_await connection.send(std::move(request));
  if (!head) co_return failure{std::move(head).error()};
  auto text = co_await connection.read_text(std::size_t{64} << 20);
  co_return text;
}

task<> exchange_into(http_pool* pool, http_route route, std::size_t* good) {
  auto got = co_await exchange(pool, std::move(route), get());
  if (got && *got == "hello") ++*good;
}

task<> exchange_at_once(io_context* loop, http_pool* pool, http_route route, std::size_t count,
                        std::size_t* good) {
  async_scope scope;
  for (std::size_t at = 0; at < count; ++at) scope.spawn(*loop, exchange_into(pool, route, good));
  co_await scope.join();
}

task<result<std::unique_ptr<byte_stream>>> connect(tcp_connector* by, http_route route) {
  auto connected = co_await by->connect(std::move(route));
  co_return connected;
}

steps says_hello(const seen_request&) { return {action::send{answer(200, {}, "hello")}}; }

bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

bool any_has(const std::vector<std::string>& texts, std::string_view part) {
  return std::any_of(texts.begin(), texts.end(),
                     [part](const std::string& text) { return has(text, part); });
}

std::ptrdiff_t open_descriptors() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"),
                       std::filesystem::directory_iterator());
}

constexpr std::array<int, 2> versions{TLS1_2_VERSION, TLS1_3_VERSION};

TEST_SUITE("server") {
  TEST_CASE("an https origin is talked to by name and by address, and its connections are kept") {
    for (const int version : versions) {
      for (const char* const host : {"localhost", "127.0.0.1"}) {
        scripted_server server(&says_hello, tls(version));
        client here;
        for (int again = 0; again < 3; ++again)
          CHECK(here.run(exchange(&here.pool, to(server, host), get())).value() == "hello");
        CHECK(server.connections() == 1);
        const auto requests = server.requests();
        REQUIRE(requests.size() == 3);
        CHECK(requests[0].tls_version == (version == TLS1_2_VERSION ? "TLSv1.2" : "TLSv1.3"));
        CHECK(requests[0].server_name == (host == std::string("localhost") ? "localhost" : ""));
        CHECK(server.tls_failures().empty());
      }
    }
  }

  TEST_CASE("a large body comes through TLS as it is") {
    const std::string object = test::content_of("large", 9'000'000);
    for (const int version : versions) {
      scripted_server server(
          [&object](const seen_request& request) -> steps {
            return {action::send{answer_with(object, request)}};
          },
          tls(version));
      client here;
      const auto got = here.run(exchange(&here.pool, to(server), get()));
      REQUIRE(got);
      CHECK((*got == object));
    }
  }

  TEST_CASE("a body in many small records comes through TLS as it is") {
    const std::string object = test::content_of("small records", 20'000);
    scripted_server server(
        [&object](const seen_request& request) -> steps {
          return {action::drip{answer_with(object, request), 7}};
        },
        tls());
    client here;
    const auto got = here.run(exchange(&here.pool, to(server), get()));
    REQUIRE(got);
    CHECK((*got == object));
  }

  TEST_CASE("a new connection resumes the session of an old one") {
    for (const int version : versions) {
      scripted_server server(
          [](const seen_request&) -> steps {
            return {action::send{answer(200, {{"Connection", "close"}}, "hello")}, action::close{}};
          },
          tls(version));
      client here;
      for (int again = 0; again < 4; ++again)
        CHECK(here.run(exchange(&here.pool, to(server), get())).value() == "hello");
      const auto requests = server.requests();
      REQUIRE(requests.size() == 4);
      CHECK(server.connections() == 4);
      for (std::size_t at = 0; at < 4; ++at) CHECK(requests[at].resumed == (at > 0));
    }
  }

  TEST_CASE("connections at once wait for one reading of the authorities, on a helper") {
    blocking_pool helpers(2);
    for (blocking_pool* const given : {&helpers, static_cast<blocking_pool*>(nullptr)}) {
      scripted_server server(&says_hello, tls());
      client here(given);
      std::size_t good = 0;
      here.run(exchange_at_once(&here.loop, &here.pool, to(server), 8, &good));
      CHECK(good == 8);
      CHECK(server.connections() == 8);
    }
  }

  TEST_CASE("authorities that cannot be read are named, and read again the next time") {
    blocking_pool helpers(1);
    scripted_server server(&says_hello, tls());
    client here(&helpers);
    const http_route route{http_origin{"https", "localhost", server.port()}, network("late.pem")};
    for (int again = 0; again < 2; ++again) {
      const auto failed = here.run(exchange(&here.pool, route, get()));
      REQUIRE_FALSE(failed);
      CHECK(failed.error().kind() == errc::invalid_request);
      CHECK(has(failed.error().reason(), "late.pem"));
    }
    directory().write("late.pem", trusted().certificate());
    CHECK(here.run(exchange(&here.pool, route, get())).value() == "hello");
    std::filesystem::remove(directory().path_of("late.pem"));
  }

  TEST_CASE("a certificate that is not right is refused before a request is sent") {
    const std::array<std::pair<test::certificate_form, const char*>, 2> cases{{
        {{.names = {"DNS:localhost"}, .valid_from = -9, .valid_until = -5}, "expired on"},
        {{.names = {"DNS:elsewhere.example"}}, "'elsewhere.example'"},
    }};
    for (const auto& [form, why] : cases) {
      scripted_server server(&says_hello, tls(TLS1_3_VERSION, form));
      client here;
      const auto failed = here.run(exchange(&here.pool, to(server), get()));
      REQUIRE_FALSE(failed);
      CHECK(failed.error().kind() == errc::tls_error);
      CHECK(has(failed.error().reason(), why));
      CHECK(failed.error().context().peer == "127.0.0.1:" + std::to_string(server.port()));
      CHECK(server.wait_for_open_connections(0));
      CHECK(server.requests().empty());
      CHECK(any_has(server.tls_failures(), "alert"));
    }
  }

  TEST_CASE("a server that speaks plain HTTP is told from one that speaks TLS") {
    scripted_server::options options;
    options.on_accept = [](std::size_t) -> steps {
      return {action::send{"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"},
              action::stall{}};
    };
    scripted_server server(&says_hello, options);
    client here;
    const auto failed = here.run(exchange(&here.pool, to(server), get()));
    REQUIRE_FALSE(failed);
    CHECK(failed.error().kind() == errc::tls_error);
    CHECK(has(failed.error().reason(), "plain HTTP"));
  }

  TEST_CASE("an end without close_notify is truncation, also of a body without a length") {
    for (const int version : versions) {
      for (const bool sized : {true, false}) {
        for (const bool orderly : {true, false}) {
          const std::string head =
              sized ? "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n" : "HTTP/1.1 200 OK\r\n\r\n";
          scripted_server server(
              [&head, orderly](const seen_request&) -> steps {
                steps script{action::send{head + "half of it"}};
                script.emplace_back(orderly ? test::step(action::close{}) : action::cut{});
                return script;
              },
              tls(version));
          client here;
          const auto got = here.run(exchange(&here.pool, to(server), get()));
          if (orderly && !sized) {
            CHECK((got && *got == "half of it"));
            continue;
          }
          REQUIRE_FALSE(got);
          CHECK(got.error().kind() == errc::truncated);
          CHECK(has(got.error().reason(), "10 "));
          CHECK(has(got.error().reason(), "close_notify") == !orderly);
        }
      }
    }
  }

  TEST_CASE("an end without close_notify after a whole body is no fault") {
    scripted_server server(
        [](const seen_request&) -> steps {
          return {action::send{answer(200, {}, "hello")}, action::cut{}};
        },
        tls());
    client here;
    for (int again = 0; again < 2; ++again) {
      CHECK(here.run(exchange(&here.pool, to(server), get())).value() == "hello");
      REQUIRE(server.wait_for_open_connections(0));
    }
    CHECK(server.connections() == 2);
  }

  TEST_CASE("an end before the answer is a connect_error, with and without close_notify") {
    for (const bool orderly : {true, false}) {
      scripted_server server(
          [orderly](const seen_request&) -> steps {
            return {orderly ? test::step(action::close{}) : action::cut{}};
          },
          tls());
      client here;
      const auto got = here.run(exchange(&here.pool, to(server), get()));
      REQUIRE_FALSE(got);
      CHECK(got.error().kind() == errc::connect_error);
    }
  }

  TEST_CASE("an idle connection that the server has closed is not used again") {
    scripted_server server(
        [](const seen_request& request) -> steps {
          steps script{action::send{answer(200, {}, "hello")}};
          if (request.number == 0) script.emplace_back(action::close{});
          return script;
        },
        tls());
    client here;
    CHECK(here.run(exchange(&here.pool, to(server), get())).value() == "hello");
    REQUIRE(server.wait_for_open_connections(0));
    CHECK(here.run(exchange(&here.pool, to(server), get())).value() == "hello");
    CHECK(server.connections() == 2);
  }

  TEST_CASE("a handshake with a silent server ends at the limit, and by a stop") {
    scripted_server::options options;
    options.on_accept = [](std::size_t) -> steps { return {action::stall{}}; };
    scripted_server server(&says_hello, options);
    client here;
    tcp_connector hasty(here.loop, here.names, {.connect_limit = 20ms, .avoid_for = 1s});
    const auto late = here.run(connect(&hasty, to(server)));
    REQUIRE_FALSE(late);
    CHECK(late.error().kind() == errc::timeout);
    CHECK(has(late.error().reason(), "handshake"));
    REQUIRE(server.wait_for_open_connections(0));
    const auto before = open_descriptors();
    std::stop_source source;
    std::thread stopper([&server, &source] {
      CHECK(server.wait_for_connections(2));
      source.request_stop();
    });
    const auto stopped =
        here.run(with_stop(source.get_token(), connect(&here.connector, to(server))));
    stopper.join();
    REQUIRE_FALSE(stopped);
    CHECK(stopped.error().kind() == errc::cancelled);
    REQUIRE(server.wait_for_open_connections(0));
    CHECK(open_descriptors() == before);
  }

  TEST_CASE("a body is stopped while nothing comes") {
    scripted_server server(
        [](const seen_request&) -> steps {
          return {action::send{"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf"},
                  action::signal{"sent"}, action::stall{}};
        },
        tls());
    client here;
    std::stop_source source;
    std::thread stopper([&server, &source] {
      CHECK(server.wait_for_requests(1));
      source.request_stop();
    });
    const auto stopped =
        here.run(with_stop(source.get_token(), exchange(&here.pool, to(server), get())));
    stopper.join();
    REQUIRE_FALSE(stopped);
    CHECK(stopped.error().kind() == errc::cancelled);
    CHECK(server.wait_for_open_connections(0));
  }
}

}  // namespace
}  // namespace headrace
