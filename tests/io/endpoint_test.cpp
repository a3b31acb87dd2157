#include <headrace/io/endpoint.hpp>

#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/un.h>

#include <string_view>

using headrace::endpoint;

TEST_SUITE("unit") {
  TEST_CASE("a literal address becomes an endpoint, brackets or not") {
    const auto four = endpoint::from_literal("127.0.0.1", 80);
    REQUIRE(four);
    CHECK(four->family() == AF_INET);
    CHECK(four->port() == 80);
    CHECK(four->to_string() == "127.0.0.1:80");
    const auto six = endpoint::from_literal("::1", 443);
    REQUIRE(six);
    CHECK(six->family() == AF_INET6);
    CHECK(six->port() == 443);
    CHECK(six->to_string() == "[::1]:443");
    CHECK(endpoint::from_literal("[::1]", 443) == six);
    CHECK(endpoint::from_literal("2001:DB8::1", 1)->to_string() == "[2001:db8::1]:1");
  }

  TEST_CASE("what is not a literal address is none") {
    using namespace std::string_view_literals;
    for (const auto text :
         {""sv, "localhost"sv, "127.0.0"sv, "127.0.0.256"sv, "127.0.0.1."sv, "[]"sv, "["sv, ":"sv,
          "::1%lo"sv, "fe80::1%eth0"sv, "127.0.0.1\0.example"sv, " 127.0.0.1"sv, "0x7f.1"sv}) {
      CAPTURE(text);
      CHECK(!endpoint::from_literal(text, 1));
    }
  }

  TEST_CASE("endpoints compare by family, address and port") {
    CHECK(*endpoint::from_literal("127.0.0.1", 1) == *endpoint::from_literal("127.0.0.1", 1));
    CHECK(*endpoint::from_literal("127.0.0.1", 1) != *endpoint::from_literal("127.0.0.1", 2));
    CHECK(*endpoint::from_literal("127.0.0.1", 1) != *endpoint::from_literal("127.0.0.2", 1));
    CHECK(*endpoint::from_literal("127.0.0.1", 1) != *endpoint::from_literal("::1", 1));
    CHECK(endpoint() == endpoint());
  }

  TEST_CASE("an endpoint of another family has no port, and a size that it can hold") {
    sockaddr_un local{};
    local.sun_family = AF_UNIX;
    const endpoint other(reinterpret_cast<const sockaddr*>(&local), sizeof local);
    CHECK(other.port() == 0);
    CHECK(other.to_string() == "?");
    CHECK(endpoint().port() == 0);
    CHECK(endpoint().to_string() == "?");
  }
}
