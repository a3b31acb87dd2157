#include "storage/service_place.hpp"

#include <doctest/doctest.h>

#include <string>

namespace headrace {
namespace {

TEST_SUITE("unit") {
  TEST_CASE("a service's URL is read with its path and its query") {
    const auto plain = parse_service_place("https://Example.com", "X");
    REQUIRE(plain);
    CHECK(plain->origin == http_origin{"https", "example.com", 443});
    CHECK(plain->path.empty());
    CHECK(plain->target() == "/");
    const auto full = parse_service_place("http://127.0.0.1:8080/a/b//?c=d", "X");
    REQUIRE(full);
    CHECK(full->origin.port == 8080);
    CHECK(full->path == "/a/b");
    CHECK(full->target() == "/a/b?c=d");
  }

  TEST_CASE("what is no URL of a service is refused by its name, and not repeated") {
    for (const char* const url : {"", "host:80", "ftp://secret-host", "https://", "http://a b",
                                  "https://user:secret@host/", "/secret"}) {
      CAPTURE(url);
      const auto refused = parse_service_place(url, "HF_ENDPOINT");
      REQUIRE_FALSE(refused);
      CHECK(refused.error().kind() == errc::invalid_request);
      const std::string said = refused.error().what();
      CHECK(said.find("HF_ENDPOINT") != std::string::npos);
      CHECK(said.find("secret") == std::string::npos);
    }
  }

  TEST_CASE("secrets go by https, or to this machine") {
    CHECK(keeps_secrets({"https", "example.com", 443}));
    CHECK(keeps_secrets({"http", "127.0.0.1", 80}));
    CHECK(keeps_secrets({"http", "127.8.9.1", 80}));
    CHECK(keeps_secrets({"http", "localhost", 80}));
    CHECK(keeps_secrets({"http", "::1", 80}));
    CHECK_FALSE(keeps_secrets({"http", "example.com", 80}));
    CHECK_FALSE(keeps_secrets({"http", "127.example.com", 80}));
    CHECK_FALSE(keeps_secrets({"http", "10.0.0.1", 80}));
  }
}

}  // namespace
}  // namespace headrace
