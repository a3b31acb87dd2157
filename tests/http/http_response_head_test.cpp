#include <headrace/http/http_response_head.hpp>

#include "http/response_parser.hpp"

#include <doctest/doctest.h>

#include <string>
#include <utility>

namespace headrace {
namespace {

http_response_head parsed(const std::string& text, bool head_request = false) {
  detail::response_parser parser;
  parser.begin(head_request);
  auto used = parser.parse_head(text);
  REQUIRE(used);
  CHECK(*used == text.size());
  REQUIRE(parser.head_complete());
  return parser.take_head();
}

TEST_SUITE("unit") {
  TEST_CASE("a head gives its status, its reason and its fields in any case") {
    const auto head = parsed(
        "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-9/100\r\nETag:  \"a b\" \t\r\nX-Empty:\r\nContent-Length: 10\r\n\r\n");
    CHECK(head.status() == 206);
    CHECK(head.reason() == "Partial Content");
    CHECK(head.field("content-range") == "bytes 0-9/100");
    CHECK(head.field("ETAG") == "\"a b\"");
    CHECK(head.field("x-empty") == "");
    CHECK_FALSE(head.field("x-absent"));
    CHECK(head.field_count() == 4);
    CHECK(head.field_at(0).first == "Content-Range");
    CHECK(head.field_at(1).second == "\"a b\"");
    CHECK(head.content_length() == 10);
    CHECK(head.body_size() == 10);
    CHECK(head.keep_alive());
    CHECK_FALSE(head.chunked());
    CHECK_FALSE(head.ends_at_close());
  }

  TEST_CASE("a head stays whole when it is moved") {
    auto first = parsed("HTTP/1.1 200 OK\r\nA: b\r\nContent-Length: 1\r\n\r\n");
    const http_response_head second = std::move(first);
    CHECK(second.reason() == "OK");
    CHECK(second.field("a") == "b");
    CHECK(second.body_size() == 1);
  }

  TEST_CASE("of fields with one name the first counts") {
    const auto head = parsed("HTTP/1.1 200\r\nX: 1\r\nx: 2\r\nContent-Length: 0\r\n\r\n");
    CHECK(head.field("X") == "1");
    CHECK(head.field_count() == 3);
    CHECK(head.reason().empty());
  }

  TEST_CASE("an answer to HEAD, a 204 and a 304 have no body, whatever they say about its length") {
    CHECK(parsed("HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n", true).body_size() == 0);
    CHECK(parsed("HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n", true).content_length() == 1000);
    CHECK(parsed("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", true).body_size() == 0);
    CHECK(parsed("HTTP/1.1 200 OK\r\n\r\n", true).body_size() == 0);
    CHECK(parsed("HTTP/1.1 200 OK\r\n\r\n", true).keep_alive());
    CHECK(parsed("HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n").body_size() == 0);
    CHECK(parsed("HTTP/1.1 204 No Content\r\n\r\n").body_size() == 0);
    CHECK(parsed("HTTP/1.1 204 No Content\r\n\r\n").keep_alive());
    CHECK_FALSE(parsed("HTTP/1.1 204 No Content\r\n\r\n").ends_at_close());
  }

  TEST_CASE("a body without a length ends where the peer closes, and the head says so") {
    for (const char* text :
         {"HTTP/1.0 200 OK\r\n\r\n", "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n",
          "HTTP/1.1 200 OK\r\n\r\n"}) {
      const auto head = parsed(text);
      CHECK(head.ends_at_close());
      CHECK_FALSE(head.body_size());
      CHECK_FALSE(head.keep_alive());
    }
    const auto chunked = parsed("HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\n\r\n");
    CHECK(chunked.chunked());
    CHECK_FALSE(chunked.body_size());
    CHECK(chunked.keep_alive());
  }

  TEST_CASE("a connection is kept unless the peer says otherwise, in HTTP/1.0 only if it says so") {
    CHECK(parsed("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").keep_alive());
    CHECK_FALSE(parsed("HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: x, Close\r\n\r\n")
                    .keep_alive());
    CHECK_FALSE(parsed("HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n").keep_alive());
    CHECK(parsed("HTTP/1.0 200 OK\r\nContent-Length: 0\r\nConnection: Keep-Alive\r\n\r\n")
              .keep_alive());
  }

  TEST_CASE("an error may be encoded, and the head says so") {
    CHECK(
        parsed("HTTP/1.1 503 x\r\nContent-Encoding: gzip\r\nContent-Length: 9\r\n\r\n").encoded());
    CHECK_FALSE(parsed("HTTP/1.1 200 x\r\nContent-Encoding: Identity\r\nContent-Length: 9\r\n\r\n")
                    .encoded());
    CHECK_FALSE(
        parsed("HTTP/1.1 200 x\r\nContent-Encoding:\r\nContent-Length: 9\r\n\r\n").encoded());
  }
}

}  // namespace
}  // namespace headrace
