#include "opened_object.hpp"

#include <headrace/base/sizes.hpp>
#include <headrace/coro/sync_wait.hpp>
#include <headrace/coro/with.hpp>
#include <headrace/stream/model.hpp>
#include <headrace/stream/runtime.hpp>

#include <doctest/doctest.h>
#include <support/scripted_server.hpp>

#include <atomic>
#include <chrono>
#include <optional>
#include <string>
#include <vector>

// Faults that other tests of this room do not bring about on a real connection already;
// docs/faults.md has all of them, and where they are tested.

namespace headrace {
namespace {

using namespace std::chrono_literals;
using test::answer;
using test::answer_with;
using test::object;
using test::opened_object;
using test::says;
using test::scripted_server;
using test::seen_request;
using test::steps;
namespace action = test::action;

/// What `open` says about a model whose only file is answered by `script`.
error open_refused(const scripted_server& server) {
  runtime engine({.threads = 1});
  std::optional<error> failed;
  try {
    static_cast<void>(
        sync_wait(with_timeout(60s, open(engine, server.url("/m/model.safetensors")))));
  } catch (const error& thrown) {
    failed = thrown;
  }
  REQUIRE(failed);
  return *failed;
}

TEST_SUITE("fault") {
  TEST_CASE("an empty object and one of seven bytes are invalid_safetensors, and asked for once") {
    const std::vector<std::string> answers = {
        answer(416, {{"Content-Range", "bytes */0"}}),
        answer(200, {{"ETag", "\"v1\""}}),
        answer(206, {{"ETag", "\"v1\""}, {"Content-Range", "bytes 0-6/7"}}, "1234567"),
        answer(200, {{"ETag", "\"v1\""}}, "1234567"),
    };
    for (const auto& bytes : answers) {
      CAPTURE(bytes.substr(0, bytes.find("\r\n")));
      scripted_server server(
          [&bytes](const seen_request&) -> steps { return {action::send{bytes}}; });
      const auto failed = open_refused(server);
      CHECK(failed.kind() == errc::invalid_safetensors);
      CHECK(says(failed, server.url("/m/model.safetensors")));
      CHECK(server.requests().size() == 1);
    }
  }

  TEST_CASE("a storm of 503 drains the host's bucket, and reading goes on when it has ended") {
    std::atomic<bool> storm{true};
    opened_object there([&storm](const seen_request& request) -> steps {
      if (storm) return {action::send{answer(503)}};
      return {action::send{answer_with(object, request)}};
    });
    there.here.terms.limits.retries = 4;
    const auto bucket = there.here.buckets.of(there.server.origin().to_string());
    const unsigned full = bucket->tokens();
    for (int range = 0; range < 3; ++range) {
      const auto refused = there.read();
      REQUIRE_FALSE(refused);
      CHECK(refused.error().kind() == errc::unavailable);
    }
    // One request to open, five for each range; a retry costs ten.
    CHECK(there.server.requests().size() == 16);
    CHECK(bucket->tokens() == full - 120);
    storm = false;
    CHECK(there.read());
    CHECK(bucket->tokens() == full - 119);
  }

  TEST_CASE("a drained bucket lets nobody through but its probe") {
    opened_object there([](const seen_request&) -> steps { return {action::send{answer(503)}}; });
    const auto bucket = there.here.buckets.of(there.server.origin().to_string());
    while (bucket->tokens() >= 10) static_cast<void>(bucket->take(10, real_clock().now()));
    static_cast<void>(bucket->take(10, real_clock().now()));  // the probe of these 15 seconds
    there.here.terms.limits.deadline = real_clock().now() + 5s;
    const auto refused = there.read();
    REQUIRE_FALSE(refused);
    CHECK(there.server.requests().size() == 2);
    CHECK(there.here.retries() == 0);
  }

  TEST_CASE("a second that a server asks for is waited") {
    std::atomic<std::int64_t> refused_at{0};
    std::atomic<std::int64_t> asked_at{0};
    opened_object there([&](const seen_request& request) -> steps {
      const auto now = real_clock().now().time_since_epoch().count();
      if (request.number == 1) {
        refused_at = now;
        return {action::send{answer(429, {{"Retry-After", "1"}})}};
      }
      asked_at = now;
      return {action::send{answer_with(object, request)}};
    });
    CHECK(there.read());
    CHECK(there.server.requests().size() == 3);
    CHECK(steady_time::duration(asked_at - refused_at) >= 1s);
  }

  TEST_CASE(
      "an answer with two readings is a protocol_error, and its connection is never used again") {
    const std::string range = "ETag: \"v1\"\r\nContent-Range: bytes 100000-249999/300000\r\n";
    const std::vector<std::string> heads = {
        "HTTP/1.1 206 Partial Content\r\n" + range +
            "Content-Length: 150000\r\nTransfer-Encoding: chunked\r\n\r\n",
        "HTTP/1.1 206 Partial Content\r\n" + range +
            "Content-Length: 150000\r\nContent-Length: 150000\r\n\r\n",
        "HTTP/1.1 206 Partial Content\r\n" + range + "Content-Length: 150000, 150000\r\n\r\n",
        "HTTP/1.1 206 Partial Content\n" + range + "Content-Length: 150000\r\n\r\n",
        "HTTP/1.1 206 Partial Content\r\n" + range + "Content-Length: 150000\n\n",
        "HTTP/1.1 206 Partial Content\r\n" + range + "X: a\rContent-Length: 150000\r\n\r\n",
        "HTTP/1.1 206 Partial Content\r\n" + range + "X: a\r\n b\r\nContent-Length: 150000\r\n\r\n",
        "HTTP/1.1 206 Partial Content\r\n" + range + "Content-Length : 150000\r\n\r\n",
        "HTTP/1.1 206 Partial Content\r\n" + range + "Content-Length: +150000\r\n\r\n",
    };
    for (const auto& head : heads) {
      CAPTURE(head);
      opened_object there([&head](const seen_request& request) -> steps {
        if (request.number == 1) return {action::send{head + object.substr(100'000, 150'000)}};
        return {action::send{answer_with(object, request)}};
      });
      const auto refused = there.read();
      REQUIRE_FALSE(refused);
      CHECK(refused.error().kind() == errc::protocol_error);
      CHECK(there.here.retries() == 0);
      CHECK(there.server.wait_for_open_connections(0));
      CHECK(there.read());
      CHECK(there.server.connections() == 2);
    }
  }

  TEST_CASE("heads, interim answers and chunk extensions without an end are a protocol_error") {
    std::string many_fields = "HTTP/1.1 206 Partial Content\r\n";
    for (int field = 0; field < 1'000; ++field)
      many_fields += "X-" + std::to_string(field) + ": a\r\n";
    std::string interim;
    for (int count = 0; count < 1'000; ++count) interim += "HTTP/1.1 103 Early Hints\r\n\r\n";
    std::string extensions =
        "HTTP/1.1 206 Partial Content\r\nETag: \"v1\"\r\nContent-Range: bytes 100000-249999/300000\r\n"
        "Transfer-Encoding: chunked\r\n\r\n5;" +
        std::string(1'000'000, 'e');
    for (const auto& bytes : {"HTTP/1.1 206 Partial Content\r\nX: " + std::string(1'000'000, 'x'),
                              many_fields, interim, extensions}) {
      CAPTURE(bytes.substr(0, 60));
      opened_object there([&bytes](const seen_request&) -> steps {
        return {action::send{bytes}, action::stall{}};
      });
      const auto refused = there.read();
      REQUIRE_FALSE(refused);
      CHECK(refused.error().kind() == errc::protocol_error);
      CHECK(there.server.requests().size() == 2);
      CHECK(there.server.wait_for_open_connections(0));
    }
  }

  TEST_CASE("a connection on which bytes follow the body is discarded") {
    opened_object there([](const seen_request& request) -> steps {
      return {action::send{answer_with(object, request) + "more"}};
    });
    CHECK(there.read());
    CHECK(there.read());
    CHECK(there.server.connections() == 2);
    CHECK(there.here.retries() == 0);
  }

  TEST_CASE("an encoded answer is refused, and nothing encoded was asked for") {
    opened_object there([](const seen_request&) -> steps {
      return {action::send{answer(206,
                                  {{"ETag", "\"v1\""},
                                   {"Content-Range", "bytes 100000-249999/300000"},
                                   {"Content-Encoding", "gzip"}},
                                  std::string(150'000, 'x'))}};
    });
    const auto refused = there.read();
    REQUIRE_FALSE(refused);
    CHECK(refused.error().kind() == errc::protocol_error);
    CHECK(says(refused.error(), "encod"));
    CHECK(there.server.requests().at(1).field("Accept-Encoding") == "identity");
  }
}

}  // namespace
}  // namespace headrace
