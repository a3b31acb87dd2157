#include "storage/redirect.hpp"

#include <doctest/doctest.h>

#include <string>

namespace headrace {
namespace {

const http_origin plain{.scheme = "http", .host = "host", .port = 8080};
const http_origin secure{.scheme = "https", .host = "host", .port = 443};

std::string resolved(const http_origin& from, std::string_view target, std::string_view location) {
  const auto to = resolve_redirect(from, target, location);
  if (!to) {
    CHECK(to.error().kind() == errc::protocol_error);
    CHECK(to.error().message().find("sig") == std::string::npos);
    return "refused";
  }
  return to->origin.to_string() + to->target;
}

TEST_SUITE("unit") {
  TEST_CASE("a redirect is resolved against the request that it answers") {
    CHECK(resolved(plain, "/a/b?q=1", "c") == "http://host:8080/a/c");
    CHECK(resolved(plain, "/a/b?q=1", "/c?sig=%2F1") == "http://host:8080/c?sig=%2F1");
    CHECK(resolved(plain, "/a/b", "../../c") == "http://host:8080/c");
    CHECK(resolved(plain, "/a/b", "?x=1") == "http://host:8080/a/b?x=1");
    CHECK(resolved(plain, "/a/b", "//other/c") == "http://other:80/c");
    CHECK(resolved(plain, "/a", "https://Other.example") == "https://other.example:443/");
    CHECK(resolved(plain, "/a", "http://host:8080/b#part") == "http://host:8080/b");
    CHECK(resolved(secure, "/a", "https://cdn:8443/b?sig=1") == "https://cdn:8443/b?sig=1");
    CHECK(resolved(plain, "/a", "http://[::1]:9/b") == "http://[::1]:9/b");
  }

  TEST_CASE("from https nothing leads to http") {
    CHECK(resolved(secure, "/a", "http://host/a?sig=1") == "refused");
    CHECK(resolved(secure, "/a", "//host/b") == "https://host:443/b");
  }

  TEST_CASE("what is no URL of the web is refused") {
    for (const char* const location :
         {"ftp://host/sig", "file:///etc/passwd", "javascript:sig", "http://", "http:///sig",
          "http://host:99999/sig", "http://host:8443sig", "http://ho st/sig", "\x01",
          "http://[::1/sig"}) {
      CAPTURE(location);
      CHECK(resolved(plain, "/a", location) == "refused");
    }
  }
}

}  // namespace
}  // namespace headrace
