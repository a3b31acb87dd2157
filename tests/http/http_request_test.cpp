#include <headrace/http/http_request.hpp>

#include <doctest/doctest.h>

#include <string>

namespace headrace {
namespace {

http_request usual() {
  http_request request;
  request.target = "/models/a%20b.safetensors?versionId=1";
  request.host = "bucket.example.com:9000";
  request.fields.emplace_back("Range", "bytes=0-65535");
  return request;
}

std::string wire_of(const http_request& request) {
  std::string wire;
  auto done = request.serialize(wire);
  REQUIRE(done);
  return wire;
}

errc refusal_of(const http_request& request) {
  std::string wire = "kept";
  auto done = request.serialize(wire);
  REQUIRE_FALSE(done);
  CHECK(wire == "kept");
  CHECK(std::string(done.error().what()).find("secret") == std::string::npos);
  return done.error().kind();
}

TEST_SUITE("unit") {
  TEST_CASE("a request is written with its host, its fields and what headrace always sends") {
    const std::string wire = wire_of(usual());
    CHECK(wire.starts_with(
        "GET /models/a%20b.safetensors?versionId=1 HTTP/1.1\r\nHost: bucket.example.com:9000\r\n"));
    CHECK(wire.find("\r\nAccept-Encoding: identity\r\n") != std::string::npos);
    CHECK(wire.find("\r\nUser-Agent: headrace/") != std::string::npos);
    CHECK(wire.find("\r\nRange: bytes=0-65535\r\n") != std::string::npos);
    CHECK(wire.ends_with("\r\n\r\n"));
    CHECK(wire.find("Connection") == std::string::npos);
    CHECK(wire.find("Content-Length") == std::string::npos);
  }

  TEST_CASE("a request is appended to what is there") {
    std::string wire = "before";
    REQUIRE(usual().serialize(wire));
    CHECK(wire.starts_with("beforeGET "));
  }

  TEST_CASE("a request that is the last one says so") {
    auto request = usual();
    request.keep_alive = false;
    CHECK(wire_of(request).find("\r\nConnection: close\r\n") != std::string::npos);
  }

  TEST_CASE(
      "a body is sent with its length, and a method that should have one says that there is none") {
    auto request = usual();
    request.method = "POST";
    CHECK(wire_of(request).ends_with("\r\nContent-Length: 0\r\n\r\n"));
    request.body = "grant_type=x";
    CHECK(wire_of(request).ends_with("\r\nContent-Length: 12\r\n\r\ngrant_type=x"));
  }

  TEST_CASE("the user agent can be replaced") {
    auto request = usual();
    request.fields.emplace_back("user-agent", "mine/1");
    const auto wire = wire_of(request);
    CHECK(wire.find("headrace/") == std::string::npos);
    CHECK(wire.find("user-agent: mine/1\r\n") != std::string::npos);
  }

  TEST_CASE("nothing in a request can begin another one") {
    for (const std::string& bad :
         {std::string("\r\nX: secret"), std::string("\n"), std::string("\r"), std::string("\0", 1),
          std::string("\x1f"), std::string("\x7f")}) {
      CAPTURE(bad);
      for (const std::string& text :
           {bad, "secret" + bad, bad + "secret", "secret" + bad + "secret"}) {
        auto request = usual();
        request.method = text;
        CHECK(refusal_of(request) == errc::invalid_request);
        request = usual();
        request.target = "/" + text;
        CHECK(refusal_of(request) == errc::invalid_request);
        request = usual();
        request.host = "h" + text;
        CHECK(refusal_of(request) == errc::invalid_request);
        request = usual();
        request.fields.emplace_back("X" + text, "v");
        CHECK(refusal_of(request) == errc::invalid_request);
        request = usual();
        request.fields.emplace_back("X", "v" + text);
        CHECK(refusal_of(request) == errc::invalid_request);
      }
    }
  }

  TEST_CASE(
      "a request with an empty part, a space where none may be, or bytes that are not encoded is refused") {
    auto request = usual();
    request.method = "";
    CHECK(refusal_of(request) == errc::invalid_request);
    request = usual();
    request.method = "GET /other";
    CHECK(refusal_of(request) == errc::invalid_request);
    for (const char* target : {"", "/a b", "/a HTTP/1.1", "/\xc3\xa9"}) {
      request = usual();
      request.target = target;
      CHECK(refusal_of(request) == errc::invalid_request);
    }
    for (const char* host : {"", "a b", "a/b", "user@host", "a,b", "h\xc3\xa9"}) {
      request = usual();
      request.host = host;
      CHECK(refusal_of(request) == errc::invalid_request);
    }
    for (const char* name : {"", "A B", "A:", "A\t", "A(", "\xc3\xa9"}) {
      request = usual();
      request.fields.emplace_back(name, "v");
      CHECK(refusal_of(request) == errc::invalid_request);
    }
  }

  TEST_CASE("fields that decide about framing cannot be set from outside") {
    for (const char* name : {"Host", "host", "Content-Length", "TRANSFER-ENCODING", "Connection",
                             "accept-encoding", "TE", "Upgrade", "Keep-Alive"}) {
      CAPTURE(name);
      auto request = usual();
      request.fields.emplace_back(name, "secret");
      CHECK(refusal_of(request) == errc::invalid_request);
    }
  }

  TEST_CASE("a field's value may be empty, hold tabs and bytes beyond ASCII") {
    auto request = usual();
    request.fields.emplace_back("A", "");
    request.fields.emplace_back("B", "x\ty \xc3\xa9");
    const auto wire = wire_of(request);
    CHECK(wire.find("\r\nA: \r\nB: x\ty \xc3\xa9\r\n") != std::string::npos);
  }
}

}  // namespace
}  // namespace headrace
