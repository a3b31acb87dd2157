#include <headrace/http/http_origin.hpp>

#include <doctest/doctest.h>

namespace headrace {
namespace {

http_origin origin_of(std::string_view text) {
  auto location = uri::parse(text);
  REQUIRE(location);
  auto origin = http_origin::of(*location);
  REQUIRE(origin);
  return *origin;
}

TEST_SUITE("unit") {
  TEST_CASE("an origin takes the scheme's port where the URL names none") {
    CHECK(origin_of("http://Example.COM/x") == http_origin{"http", "example.com", 80});
    CHECK(origin_of("https://example.com/x") == http_origin{"https", "example.com", 443});
    CHECK(origin_of("http://example.com:9000/x") == http_origin{"http", "example.com", 9000});
  }

  TEST_CASE("an IPv6 address is kept without its brackets and written with them") {
    const auto origin = origin_of("http://[::1]:8080/x");
    CHECK(origin.host == "::1");
    CHECK(origin.port == 8080);
    CHECK(origin.host_field() == "[::1]:8080");
    CHECK(origin.to_string() == "http://[::1]:8080");
    CHECK(origin_of("http://[2001:db8::1]/").host_field() == "[2001:db8::1]");
  }

  TEST_CASE("the Host field names the port only where it is not the scheme's own") {
    CHECK(http_origin{"http", "a", 80}.host_field() == "a");
    CHECK(http_origin{"http", "a", 443}.host_field() == "a:443");
    CHECK(http_origin{"https", "a", 443}.host_field() == "a");
    CHECK(http_origin{"https", "a", 80}.host_field() == "a:80");
    CHECK(http_origin{"https", "a", 443}.to_string() == "https://a:443");
  }

  TEST_CASE("an origin is refused where the URL has none") {
    uri location{.scheme = "s3", .authority = "bucket", .user_info = {}, .path = "x", .query = {}};
    CHECK(http_origin::of(location).error().kind() == errc::unsupported);
    location.scheme = "http";
    for (const char* authority :
         {"", ":80", "host:", "host:0", "host:65536", "host:8x", "[]", "[::1]:"}) {
      CAPTURE(authority);
      location.authority = authority;
      const auto origin = http_origin::of(location);
      REQUIRE_FALSE(origin);
      CHECK(origin.error().kind() == errc::invalid_request);
    }
  }

  TEST_CASE("origins differ in scheme, host and port") {
    const http_origin origin{"http", "a", 80};
    CHECK(origin != http_origin{"https", "a", 80});
    CHECK(origin != http_origin{"http", "b", 80});
    CHECK(origin != http_origin{"http", "a", 81});
    CHECK(origin < http_origin{"http", "a", 81});
  }
}

}  // namespace
}  // namespace headrace
