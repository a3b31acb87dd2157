#include <headrace/http/tcp_connector.hpp>

#include <doctest/doctest.h>
#include <support/scripted_server.hpp>
#include <support/test_loop.hpp>

#include <memory>
#include <string>

namespace headrace {
namespace {

using test::scripted_server;
using test::seen_request;
using test::steps;
using test::test_loop;

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
}

}  // namespace
}  // namespace headrace
