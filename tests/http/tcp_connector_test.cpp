#include <headrace/http/tcp_connector.hpp>

#include <doctest/doctest.h>
#include <support/scripted_server.hpp>
#include <support/test_loop.hpp>
#include <support/useless_addresses.hpp>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace headrace {
namespace {

using namespace std::chrono_literals;
using test::at;
using test::black_hole;
using test::dead_address;
using test::scripted_server;
using test::seen_request;
using test::steps;
using test::test_loop;
namespace action = test::action;

steps silence(const seen_request&) { return {}; }

/// Names mean what a test says.
class scripted_names final : public name_service {
 public:
  std::vector<endpoint> addresses;
  bool answers = true;
  std::vector<std::string> asked;
  std::vector<std::string> forgotten;

  task<result<std::vector<endpoint>>> resolve(std::string host, std::uint16_t) override {
    asked.push_back(std::move(host));
    if (!answers) {
      try {
        co_await sleep_for(1h);
      } catch (const error& stopped) {
        co_return failure{stopped};
      }
    }
    co_return addresses;
  }
  void forget(std::string_view host) override { forgotten.emplace_back(host); }
};

/// A route through a proxy for both kinds of origin.
http_route through(const std::string& proxy, http_origin origin) {
  network_settings settings;
  settings.proxy = {.http = proxy, .https = proxy};
  return {std::move(origin), std::make_shared<const network_settings>(std::move(settings))};
}

bool says(const error& failed, std::string_view part) {
  return std::string_view(failed.what()).find(part) != std::string_view::npos;
}

task<result<std::unique_ptr<byte_stream>>> connect_and_stop(io_context* loop,
                                                            tcp_connector* connector,
                                                            http_route route,
                                                            std::function<bool()> when) {
  std::stop_source stop;
  async_scope scope;
  struct stopping {
    static task<void> soon(std::stop_source* source, std::function<bool()> ready) {
      while (!ready()) co_await sleep_for(1ms);
      source->request_stop();
    }
  };
  scope.spawn(*loop, stopping::soon(&stop, std::move(when)));
  auto done = co_await with_stop(stop.get_token(), connector->connect(std::move(route)));
  co_await scope.join();
  co_return std::move(done);
}

TEST_SUITE("server") {
  TEST_CASE("an origin is connected to by address and by name") {
    scripted_server server([](const seen_request&) -> steps { return {}; });
    test_loop here;
    resolver names(here.loop);
    tcp_connector connector(here.loop, names);
    for (const char* host : {"127.0.0.1", "localhost"}) {
      auto stream = here.run(connector.connect({"http", host, server.port()}));
      REQUIRE(stream);
      CHECK((*stream)->peer() == "127.0.0.1:" + std::to_string(server.port()));
      CHECK_FALSE((*stream)->stale());
    }
    CHECK(server.wait_for_connections(2));
  }

  TEST_CASE("an origin of another scheme is unsupported") {
    test_loop here;
    resolver names(here.loop);
    tcp_connector connector(here.loop, names);
    const auto stream = here.run(connector.connect({"ftp", "127.0.0.1", 443}));
    REQUIRE_FALSE(stream);
    CHECK(stream.error().kind() == errc::unsupported);
  }

  TEST_CASE("an origin where nobody listens is an error that names it") {
    std::uint16_t port = 0;
    {
      const scripted_server gone([](const seen_request&) -> steps { return {}; });
      port = gone.port();
    }
    test_loop here;
    resolver names(here.loop);
    tcp_connector connector(here.loop, names);
    const auto stream = here.run(connector.connect({"http", "127.0.0.1", port}));
    REQUIRE_FALSE(stream);
    CHECK(stream.error().kind() == errc::connect_error);
    CHECK(stream.error().reason().find("http://127.0.0.1:" + std::to_string(port)) !=
          std::string::npos);
    CHECK(stream.error().context().peer == "127.0.0.1:" + std::to_string(port));
  }

  TEST_CASE("an address to avoid is still used where there is no other") {
    scripted_server server([](const seen_request&) -> steps { return {}; });
    test_loop here;
    resolver names(here.loop);
    tcp_connector connector(here.loop, names);
    connector.avoid("127.0.0.1:" + std::to_string(server.port()));
    CHECK(here.run(connector.connect({"http", "127.0.0.1", server.port()})));
  }

  TEST_CASE("an address that is dead and one that answers nothing cost one delay at most") {
    scripted_server server(silence);
    const dead_address dead("127.0.0.1");
    const black_hole hole("127.0.0.2");
    static_assert(tcp_connector::options{}.attempt_delay <= 300ms);
    test_loop here;
    scripted_names names;
    names.addresses = {hole.address, dead.address, at("127.0.0.1", server.port())};
    // Were an address waited for to its end, this would be the end of the test.
    tcp_connector connector(here.loop, names, {.connect_limit = 1h});
    for (int turn = 0; turn < 3; ++turn) {
      const auto stream = here.run(connector.connect({"http", "store.test", server.port()}));
      REQUIRE(stream);
      CHECK((*stream)->peer() == "127.0.0.1:" + std::to_string(server.port()));
    }
    CHECK(names.forgotten.empty());
  }

  TEST_CASE("an IPv6 that leads nowhere costs one delay, and comes last from then on") {
    if (!test::has_ipv6()) {
      MESSAGE("no IPv6 here");
      return;
    }
    scripted_server server(silence);
    const black_hole hole("::1");
    const black_hole other("::1");
    test_loop here;
    scripted_names names;
    names.addresses = {hole.address, other.address, at("127.0.0.1", server.port())};
    {
      tcp_connector connector(here.loop, names, {.connect_limit = 1h});
      const auto stream = here.run(connector.connect({"http", "store.test", server.port()}));
      REQUIRE(stream);
      CHECK((*stream)->peer() == "127.0.0.1:" + std::to_string(server.port()));
    }
    {
      // With a delay that nobody lives to see, only one that is known comes last can be skipped.
      tcp_connector connector(here.loop, names, {.connect_limit = 1h, .attempt_delay = 1h});
      connector.avoid(hole.address.to_string());
      connector.avoid(other.address.to_string());
      CHECK(here.run(connector.connect({"http", "store.test", server.port()})));
    }
  }

  TEST_CASE("a literal IPv6 address is an origin like any other") {
    if (!test::has_ipv6()) {
      MESSAGE("no IPv6 here");
      return;
    }
    scripted_server server(silence, {.address = "::1"});
    const auto origin =
        http_origin::of(uri::parse("http://[::1]:" + std::to_string(server.port()) + "/x").value());
    REQUIRE(origin);
    test_loop here;
    resolver names(here.loop);
    tcp_connector connector(here.loop, names);
    const auto stream = here.run(connector.connect(*origin));
    REQUIRE(stream);
    CHECK((*stream)->peer() == "[::1]:" + std::to_string(server.port()));
  }

  TEST_CASE("a name whose addresses are all of no use is asked for anew the next time") {
    const dead_address dead;
    test_loop here;
    scripted_names names;
    names.addresses = {dead.address, dead.address};
    tcp_connector connector(here.loop, names);
    const auto stream = here.run(connector.connect({"http", "store.test", 80}));
    REQUIRE_FALSE(stream);
    CHECK(stream.error().kind() == errc::connect_error);
    CHECK(says(stream.error(), "http://store.test:80 at any of its 2 addresses"));
    CHECK(names.forgotten == std::vector<std::string>{"store.test"});
  }

  TEST_CASE("the connect limit ends a look-up, and a stop does; both say what was waited for") {
    test_loop here;
    scripted_names names;
    names.answers = false;
    tcp_connector connector(here.loop, names, {.connect_limit = 20ms});
    const auto late = here.run(connector.connect({"http", "store.test", 80}));
    REQUIRE_FALSE(late);
    CHECK(late.error().kind() == errc::timeout);
    CHECK(says(late.error(), "http://store.test:80 was not resolved within 20 ms"));

    tcp_connector patient(here.loop, names, {.connect_limit = 1h});
    const auto stopped = here.run(connect_and_stop(&here.loop, &patient, {"http", "store.test", 80},
                                                   [&names] { return names.asked.size() == 2; }));
    REQUIRE_FALSE(stopped);
    CHECK(stopped.error().kind() == errc::cancelled);
    CHECK(says(stopped.error(), "store.test"));
  }

  TEST_CASE("http origins are reached by way of their proxy, whose name alone is looked up") {
    scripted_server proxy(silence);
    test_loop here;
    scripted_names names;
    names.addresses = {at("127.0.0.1", proxy.port())};
    tcp_connector connector(here.loop, names);
    const std::string url = "http://user:hunter2@proxy.test:" + std::to_string(proxy.port());
    const auto stream = here.run(connector.connect(through(url, {"http", "store.test", 80})));
    REQUIRE(stream);
    CHECK((*stream)->peer() == "127.0.0.1:" + std::to_string(proxy.port()));
    CHECK(names.asked == std::vector<std::string>{"proxy.test"});

    network_settings around;
    around.proxy = {.http = url, .bypass = "store.test"};
    CHECK(here.run(connector.connect(
        http_route({"http", "store.test", 80}, std::make_shared<const network_settings>(around)))));
    CHECK(names.asked.back() == "store.test");
  }

  TEST_CASE("https origins are reached by a tunnel, and the proxy hears nothing but where to") {
    scripted_server proxy([](const seen_request&) -> steps {
      return {action::send{"HTTP/1.0 200 Connection established\r\n\r\n"}, action::close{}};
    });
    test_loop here;
    resolver names(here.loop);
    tcp_connector connector(here.loop, names);
    const std::string url = "us%65r:p%40ss@127.0.0.1:" + std::to_string(proxy.port());
    // What comes of the handshake is not this test's business.
    static_cast<void>(here.run(connector.connect(through(url, {"https", "store.test", 443}))));
    static_cast<void>(here.run(connector.connect(through(url, {"https", "2001:db8::7", 9443}))));
    const auto requests = proxy.requests();
    REQUIRE(requests.size() == 2);
    CHECK(requests[0].method == "CONNECT");
    CHECK(requests[0].target == "store.test:443");
    CHECK(requests[0].field("Host") == "store.test:443");
    CHECK(requests[0].field("Proxy-Authorization") == "Basic dXNlcjpwQHNz");
    CHECK_FALSE(requests[0].field("Authorization"));
    CHECK(requests[1].target == "[2001:db8::7]:9443");
  }

  TEST_CASE("a proxy that cannot be reached is named, without its password") {
    const dead_address dead;
    test_loop here;
    resolver names(here.loop);
    tcp_connector connector(here.loop, names);
    const std::string host = dead.address.to_string();
    for (const char* scheme : {"http", "https"}) {
      const auto stream = here.run(
          connector.connect(through("http://user:hunter2@" + host, {scheme, "store.test", 80})));
      REQUIRE_FALSE(stream);
      CHECK(stream.error().kind() == errc::connect_error);
      CHECK(says(stream.error(), "the proxy http://" + host));
      CHECK(says(stream.error(), scheme + std::string("_proxy")));
      CHECK_FALSE(says(stream.error(), "hunter2"));
    }
  }

  TEST_CASE("a proxy that never answers CONNECT is a timeout, and a stop ends the wait") {
    scripted_server proxy([](const seen_request&) -> steps { return {action::stall{}}; });
    test_loop here;
    resolver names(here.loop);
    const std::string url = "http://127.0.0.1:" + std::to_string(proxy.port());
    tcp_connector connector(here.loop, names, {.connect_limit = 200ms});
    const auto late = here.run(connector.connect(through(url, {"https", "store.test", 443})));
    REQUIRE_FALSE(late);
    CHECK(late.error().kind() == errc::timeout);
    CHECK(says(late.error(), "did not connect to https://store.test:443 within 200 ms"));

    tcp_connector patient(here.loop, names, {.connect_limit = 1h});
    const auto stopped =
        here.run(connect_and_stop(&here.loop, &patient, through(url, {"https", "store.test", 443}),
                                  [&proxy] { return proxy.requests().size() == 2; }));
    REQUIRE_FALSE(stopped);
    CHECK(stopped.error().kind() == errc::cancelled);
    CHECK(proxy.wait_for_open_connections(0));
  }
}

}  // namespace
}  // namespace headrace
