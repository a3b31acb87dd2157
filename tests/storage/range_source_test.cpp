#include "opened_object.hpp"

#include <doctest/doctest.h>
#include <support/checkpoint.hpp>
#include <support/scripted_server.hpp>

#include <atomic>
#include <functional>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

namespace headrace {
namespace {

using namespace std::chrono_literals;
using test::answer;
using test::answer_with;
using test::cut;
using test::object;
using test::opened_object;
using test::says;
using test::scripted_server;
using test::seen_request;
using test::small_name;
using test::steps;
using test::storage_client;
namespace action = test::action;

/// 206 for a range of the object, as the arguments claim.
std::string part(std::uint64_t begin, std::uint64_t size, std::string_view content_range,
                 http_fields more = {{"ETag", "\"v1\""}}) {
  if (!content_range.empty()) more.emplace_back("Content-Range", content_range);
  return answer(206, more, object.substr(begin, size));
}

TEST_SUITE("fault") {
  TEST_CASE("opening brings the first bytes, the size and the pin; reading carries it") {
    opened_object there([](const seen_request& request) -> steps {
      return {action::send{answer_with(object, request)}};
    });
    CHECK(there.read());
    const auto requests = there.server.requests();
    REQUIRE(requests.size() == 2);
    CHECK(requests[0].field("Range") == "bytes=0-65535");
    CHECK_FALSE(requests[0].field("If-Match"));
    CHECK(requests[1].field("Range") == "bytes=100000-249999");
    CHECK(requests[1].field("If-Match") == "\"v1\"");
    CHECK(there.server.connections() == 1);
    CHECK(there.here.retries() == 0);
  }

  TEST_CASE("a body that ends early is resumed at the first missing byte with the pinned ETag") {
    for (const std::size_t count : {0U, 1U, 1'000U, 149'999U}) {
      opened_object there([count](const seen_request& request) -> steps {
        const auto whole = answer_with(object, request);
        if (request.number > 1) return {action::send{whole}};
        return {action::send{cut(whole, count)}, action::close{}};
      });
      CHECK(there.read());
      const auto requests = there.server.requests();
      REQUIRE(requests.size() == 3);
      CHECK(requests[2].range() == byte_range{100'000 + count, 150'000 - count});
      CHECK(requests[2].field("If-Match") == "\"v1\"");
      CHECK(there.here.retries() == 1);
    }
  }

  TEST_CASE("a body that is reset is resumed, and nothing that has arrived is asked for again") {
    opened_object there([](const seen_request& request) -> steps {
      const auto whole = answer_with(object, request);
      if (request.number > 3) return {action::send{whole}};
      return {action::send{cut(whole, 20'000)}, action::reset{}};
    });
    CHECK(there.read());
    std::uint64_t before = 100'000;
    for (const auto& request : there.server.requests()) {
      if (request.number < 2) continue;
      REQUIRE(request.range());
      // A reset may overtake what was sent before it.
      CHECK(request.range()->begin >= before);
      CHECK(request.range()->begin <= before + 20'000);
      CHECK(request.range()->end() == 250'000);
      CHECK(request.field("If-Match") == "\"v1\"");
      before = request.range()->begin;
    }
  }

  TEST_CASE("many cuts are no failure as long as there is progress") {
    opened_object there([](const seen_request& request) -> steps {
      const auto whole = answer_with(object, request);
      if (request.range()->size <= 70'000) return {action::send{whole}};
      return {action::send{cut(whole, 66'000)}, action::close{}};
    });
    there.here.terms.limits.retries = 1;
    CHECK(there.read());
    CHECK(there.here.retries() == 2);
  }

  TEST_CASE("cuts without progress end as truncated") {
    opened_object there([](const seen_request& request) -> steps {
      return {action::send{cut(answer_with(object, request), 10)}, action::close{}};
    });
    there.here.terms.limits.retries = 2;
    const auto failed = there.refused();
    CHECK(failed.kind() == errc::truncated);
    CHECK(failed.context().attempt == 3);
    CHECK(failed.context().range == byte_range{100'000, 150'000});
    CHECK(says(failed, there.server.url("/m/" + small_name)));
    CHECK(there.server.requests().size() == 4);
  }

  TEST_CASE("an opening that is cut goes on where it was") {
    scripted_server server([](const seen_request& request) -> steps {
      const auto whole = answer_with(object, request);
      if (request.number > 0) return {action::send{whole}};
      return {action::send{cut(whole, 5'000)}, action::close{}};
    });
    storage_client here;
    const auto source = storage_client::source(server.url("/x.safetensors"), small_name);
    const auto first = here.open(*source);
    REQUIRE(first);
    CHECK((*first == object.substr(0, 65'536)));
    const auto requests = server.requests();
    REQUIRE(requests.size() == 2);
    CHECK(requests[1].range() == byte_range{5'000, 60'536});
    CHECK(requests[1].field("If-Match") == "\"v1\"");
  }

  TEST_CASE(
      "a range that comes in smaller parts than it was asked for is progress and not a fault") {
    opened_object there([](const seen_request& request) -> steps {
      const auto range = *request.range();
      const auto size = std::min<std::uint64_t>(range.size, 40'000);
      return {action::send{part(range.begin, size,
                                "bytes " + std::to_string(range.begin) + "-" +
                                    std::to_string(range.begin + size - 1) + "/300000")}};
    });
    there.here.terms.limits.retries = 0;
    CHECK(there.read());
    CHECK(there.server.requests().size() == 5);
    CHECK(there.here.retries() == 0);
    CHECK(there.server.connections() == 1);
  }

  TEST_CASE(
      "an answer that is not the range asked for is a protocol_error, and its connection is closed") {
    const std::vector<std::string> wrong = {
        part(100'000, 150'000, ""),
        part(100'000, 150'000, "bytes"),
        part(100'000, 150'000, "lines 100000-249999/300000"),
        part(100'000, 150'000, "bytes 100001-250000/300000"),
        part(100'000, 150'000, "bytes 0-149999/300000"),
        part(100'000, 150'001, "bytes 100000-250000/300000"),
        part(100'000, 150'000, "bytes 100000-249999/*"),
        part(100'000, 150'000, "bytes 100000-249999/249999"),
        part(100'000, 150'000, "bytes */300000"),
        part(100'000, 149'999, "bytes 100000-249999/300000"),
        part(100'000, 150'001, "bytes 100000-249999/300000"),
        part(100'000, 150'000, "bytes 249999-100000/300000"),
        answer(206, {{"ETag", "\"v1\""}, {"Content-Type", "multipart/byteranges; boundary=x"}},
               "--x\r\n"),
        answer(206,
               {{"ETag", "\"v1\""},
                {"Content-Range", "bytes 100000-249999/300000"},
                {"Content-Encoding", "gzip"}},
               "x"),
        answer(200, {{"ETag", "\"v1\""}, {"Content-Encoding", "gzip"}}, "x"),
        answer(204),
        answer(202, {}, "x"),
        answer(304, {{"ETag", "\"v1\""}}),
        "HTTP/1.1 206 Partial Content\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx",
        "HTTP/1.1 206 Partial Content\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\nx",
        "SSH-2.0-OpenSSH_9.6\r\n",
    };
    for (const auto& bytes : wrong) {
      CAPTURE(bytes.substr(0, bytes.find("\r\n\r\n")));
      opened_object there([&bytes](const seen_request&) -> steps { return {action::send{bytes}}; });
      CHECK(there.refused().kind() == errc::protocol_error);
      CHECK(there.server.requests().size() == 2);
      CHECK(there.here.retries() == 0);
    }
  }

  TEST_CASE(
      "of a whole object that comes instead of a range, only the range is taken, and its rest is not waited for") {
    opened_object there([](const seen_request&) -> steps {
      const auto whole = answer(200, {{"ETag", "\"v1\""}}, object);
      return {action::send{cut(whole, 250'000)}, action::wait_for{"never"}};
    });
    CHECK(there.read());
    CHECK(there.server.requests().size() == 2);
    there.server.signal("never");
    CHECK(there.server.wait_for_open_connections(0));
  }

  TEST_CASE("a whole object that is cut is asked for again, and what was taken is skipped") {
    opened_object there([](const seen_request& request) -> steps {
      const auto whole = answer(200, {{"ETag", "\"v1\""}}, object);
      if (request.number == 1) return {action::send{cut(whole, 40'000)}, action::close{}};
      if (request.number == 2) return {action::send{cut(whole, 180'000)}, action::close{}};
      return {action::send{whole}};
    });
    CHECK(there.read());
    const auto requests = there.server.requests();
    REQUIRE(requests.size() == 4);
    CHECK(requests[2].range() == byte_range{100'000, 150'000});
    CHECK(requests[3].range() == byte_range{180'000, 70'000});
  }

  TEST_CASE("a whole object of unknown length cannot be told from another and is refused") {
    for (
        const std::string head :
        {"HTTP/1.1 200 OK\r\nETag: \"v1\"\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
         "HTTP/1.1 200 OK\r\nETag: \"v1\"\r\n\r\nhello"}) {
      opened_object there(
          [&head](const seen_request&) -> steps { return {action::send{head}, action::close{}}; });
      CHECK(there.refused().kind() == errc::protocol_error);
    }
  }

  TEST_CASE("a range in chunks is taken, and its connection kept") {
    opened_object there([](const seen_request& request) -> steps {
      const auto range = *request.range();
      std::string body = "HTTP/1.1 206 Partial Content\r\nETag: \"v1\"\r\nContent-Range: bytes " +
                         std::to_string(range.begin) + "-" + std::to_string(range.end() - 1) +
                         "/300000\r\nTransfer-Encoding: chunked\r\n\r\n";
      body += "249f0\r\n" + object.substr(range.begin, 150'000) + "\r\n0\r\n\r\n";
      return {action::send{body}};
    });
    CHECK(there.read());
    CHECK(there.read());
    CHECK(there.server.connections() == 1);
  }

  TEST_CASE("a chunked range that is cut is resumed") {
    opened_object there([](const seen_request& request) -> steps {
      if (request.number > 1) return {action::send{answer_with(object, request)}};
      return {
          action::send{
              "HTTP/1.1 206 Partial Content\r\nETag: \"v1\"\r\nContent-Range: bytes 100000-249999/300000\r\n"
              "Transfer-Encoding: chunked\r\n\r\n3e8\r\n" +
              object.substr(100'000, 1'000) + "\r\n3e8\r\n" + object.substr(101'000, 300)},
          action::close{}};
    });
    CHECK(there.read());
    const auto requests = there.server.requests();
    REQUIRE(requests.size() == 3);
    CHECK(requests[2].range()->begin == 101'300);
  }

  TEST_CASE("another version of the object is object_changed, however the server shows it") {
    const std::string range = "bytes 100000-249999/300000";
    const std::vector<std::string> changed = {
        part(100'000, 150'000, "bytes 100000-249999/300001"),
        part(100'000, 150'000, range, {{"ETag", "\"v2\""}}),
        part(100'000, 150'000, range, {{"ETag", "W/\"v1\""}}),
        part(100'000, 150'000, range, {}),
        answer(200, {{"ETag", "\"v2\""}}, object),
        answer(200, {{"ETag", "\"v1\""}}, object + "x"),
        answer(412),
        answer(404),
        answer(410),
        answer(416, {{"Content-Range", "bytes */100"}}),
        answer(416),
        answer(412, {}, "<?xml version=\"1.0\"?><Error><Code>PreconditionFailed</Code></Error>"),
    };
    for (const auto& bytes : changed) {
      CAPTURE(bytes.substr(0, bytes.find("\r\n\r\n")));
      opened_object there([&bytes](const seen_request&) -> steps { return {action::send{bytes}}; });
      const auto failed = there.refused();
      CHECK(failed.kind() == errc::object_changed);
      CHECK(says(failed, "load it again"));
      CHECK(there.server.requests().size() == 2);
    }
  }

  TEST_CASE("a change between an attempt and its resumption is object_changed") {
    opened_object there([](const seen_request& request) -> steps {
      const auto whole = answer_with(object, request);
      if (request.number == 1) return {action::send{cut(whole, 5'000)}, action::close{}};
      return {action::send{answer_with(object, request, "\"v2\"")}};
    });
    CHECK(there.refused().kind() == errc::object_changed);
  }

  TEST_CASE("a weak ETag is never sent and always compared") {
    opened_object there(
        [](const seen_request& request) -> steps {
          const auto* const etag = request.number < 2 ? "W/\"w1\"" : "W/\"w2\"";
          return {action::send{answer_with(object, request, etag)}};
        },
        "W/\"w1\"");
    CHECK(there.read());
    for (const auto& request : there.server.requests()) CHECK_FALSE(request.field("If-Match"));
    CHECK(there.refused().kind() == errc::object_changed);
  }

  TEST_CASE("without an ETag the date of modification is compared, without that the size") {
    scripted_server server([](const seen_request& request) -> steps {
      const auto range = *request.range();
      http_fields fields;
      if (request.number < 2) fields.emplace_back("Last-Modified", "Wed, 21 Oct 2015 07:28:00 GMT");
      if (request.number == 2)
        fields.emplace_back("Last-Modified", "Thu, 22 Oct 2015 07:28:00 GMT");
      const std::string total = request.number < 5 ? "300000" : "300001";
      return {action::send{part(range.begin, range.size,
                                "bytes " + std::to_string(range.begin) + "-" +
                                    std::to_string(range.end() - 1) + "/" + total,
                                fields)}};
    });
    storage_client here;
    auto source = storage_client::source(server.url("/x.safetensors"), small_name);
    REQUIRE(here.open(*source));
    CHECK(here.read(*source, 70'000, 1'000));
    CHECK(here.read(*source, 70'000, 1'000).error().kind() == errc::object_changed);
    source = storage_client::source(server.url("/x.safetensors"), small_name);
    REQUIRE(here.open(*source));
    CHECK(here.read(*source, 70'000, 1'000));
    CHECK(here.read(*source, 70'000, 1'000).error().kind() == errc::object_changed);
  }

  TEST_CASE("an object of nothing has no bytes, whichever way the server puts it") {
    for (const auto& bytes : {answer(416, {{"Content-Range", "bytes */0"}}), answer(416),
                              answer(200, {{"ETag", "\"e\""}})}) {
      scripted_server server(
          [&bytes](const seen_request&) -> steps { return {action::send{bytes}}; });
      storage_client here;
      const auto source = storage_client::source(server.url("/x.safetensors"), small_name);
      const auto first = here.open(*source);
      REQUIRE(first);
      CHECK(first->empty());
      CHECK(source->size() == 0);
      CHECK(server.requests().size() == 1);
    }
  }

  TEST_CASE("an object of seven bytes is seven bytes") {
    const std::string seven = "1234567";
    const bool ranges = true;
    for (const bool with_ranges : {ranges, !ranges}) {
      scripted_server server([&](const seen_request& request) -> steps {
        return {action::send{with_ranges ? answer_with(seven, request)
                                         : answer(200, {{"ETag", "\"e\""}}, seven)}};
      });
      storage_client here;
      const auto source = storage_client::source(server.url("/x.safetensors"), small_name);
      const auto first = here.open(*source);
      REQUIRE(first);
      CHECK(*first == seven);
      CHECK(source->size() == 7);
      CHECK(server.requests().size() == 1);
    }
  }

  TEST_CASE(
      "a server that refuses the first bytes of an object that has some breaks the protocol") {
    scripted_server server([](const seen_request&) -> steps {
      return {action::send{answer(416, {{"Content-Range", "bytes */10"}})}};
    });
    storage_client here;
    const auto source = storage_client::source(server.url("/x.safetensors"), small_name);
    CHECK(here.open(*source).error().kind() == errc::protocol_error);
  }

  TEST_CASE("answers that pass are waited for") {
    for (const int status : {408, 429, 500, 502, 503, 504}) {
      CAPTURE(status);
      opened_object there([status](const seen_request& request) -> steps {
        if (request.number < 3) return {action::send{answer(status, {}, "not now")}};
        return {action::send{answer_with(object, request)}};
      });
      CHECK(there.read());
      CHECK(there.here.retries() == 2);
      CHECK(there.server.connections() == 1);
    }
  }

  TEST_CASE("answers that do not pass are given up on at once") {
    const std::vector<std::pair<int, errc>> answers = {
        {400, errc::invalid_request}, {401, errc::access_denied},   {403, errc::access_denied},
        {405, errc::invalid_request}, {451, errc::invalid_request}, {501, errc::unavailable}};
    for (const auto& [code, kind] : answers) {
      const int status = code;
      CAPTURE(status);
      opened_object there([status](const seen_request&) -> steps {
        return {action::send{answer(status, {{"x-request-id", "R-17"}})}};
      });
      const auto failed = there.refused();
      CHECK(failed.kind() == kind);
      CHECK(failed.context().status == status);
      CHECK(failed.context().request_id == "R-17");
      CHECK_FALSE(failed.context().peer.empty());
      CHECK(there.server.requests().size() == 2);
    }
    scripted_server server(
        [](const seen_request&) -> steps { return {action::send{answer(404)}}; });
    storage_client here;
    const auto source = storage_client::source(server.url("/x.safetensors"), small_name);
    CHECK(here.open(*source).error().kind() == errc::not_found);
  }

  TEST_CASE("503 for ever ends when the retries do, and says how often it was tried") {
    opened_object there([](const seen_request&) -> steps { return {action::send{answer(503)}}; });
    there.here.terms.limits.retries = 3;
    const auto failed = there.refused();
    CHECK(failed.kind() == errc::unavailable);
    CHECK(failed.context().attempt == 4);
    CHECK(says(failed, "attempt 4"));
    CHECK(says(failed, "status 503"));
    CHECK(there.server.requests().size() == 5);
    CHECK(there.here.retries() == 3);
  }

  TEST_CASE("503 for ever ends at the deadline") {
    opened_object there([](const seen_request&) -> steps { return {action::send{answer(503)}}; });
    there.here.terms.limits.retries = 1'000'000;
    there.here.terms.limits.deadline = real_clock().now() + 100ms;
    CHECK(there.refused().kind() == errc::timeout);
  }

  TEST_CASE("Retry-After is honoured up to a limit") {
    opened_object patient([](const seen_request& request) -> steps {
      if (request.number == 1) return {action::send{answer(429, {{"Retry-After", "0"}})}};
      if (request.number == 2)
        return {action::send{answer(503, {{"Retry-After", "Wed, 21 Oct 2015 07:28:00 GMT"}})}};
      if (request.number == 3) return {action::send{answer(503, {{"Retry-After", "soon"}})}};
      return {action::send{answer_with(object, request)}};
    });
    CHECK(patient.read());
    for (const char* const value :
         {"999999", "99999999999999999999", "Wed, 21 Oct 2199 07:28:00 GMT"}) {
      opened_object there([value](const seen_request&) -> steps {
        return {action::send{answer(429, {{"Retry-After", value}})}};
      });
      CAPTURE(value);
      const auto failed = there.refused();
      CHECK(failed.kind() == errc::throttled);
      CHECK(there.server.requests().size() == 2);
    }
    opened_object late([](const seen_request&) -> steps {
      return {action::send{answer(503, {{"Retry-After", "30"}})}};
    });
    late.here.terms.limits.deadline = real_clock().now() + 20s;
    CHECK(late.refused().kind() == errc::throttled);
  }

  TEST_CASE("a refusal's body is read to a bound") {
    opened_object there([](const seen_request& request) -> steps {
      if (request.number == 1) return {action::send{answer(500, {}, std::string(1 << 20, '<'))}};
      return {action::send{answer_with(object, request)}};
    });
    CHECK(there.read());
    CHECK(there.here.retries() == 1);
  }

  TEST_CASE("a body that stalls is resumed on another connection") {
    opened_object there([](const seen_request& request) -> steps {
      const auto whole = answer_with(object, request);
      if (request.number > 1) return {action::send{whole}};
      return {action::send{cut(whole, 7'000)}, action::stall{}};
    });
    there.here.terms.limits.stall_limit = 50ms;
    CHECK(there.read());
    const auto requests = there.server.requests();
    REQUIRE(requests.size() == 3);
    CHECK(requests[2].range() == byte_range{107'000, 143'000});
    CHECK(requests[2].connection != requests[1].connection);
  }

  TEST_CASE("an answer that does not come is asked for again") {
    opened_object there([](const seen_request& request) -> steps {
      if (request.number == 1) return {action::stall{}};
      if (request.number == 2) return {action::send{"HTTP/1.1 206 Par"}, action::stall{}};
      if (request.number == 3)
        return {action::send{"HTTP/1.1 503 Busy\r\nContent-Length: 9\r\n\r\nhal"}, action::stall{}};
      return {action::send{answer_with(object, request)}};
    });
    there.here.terms.limits.stall_limit = 50ms;
    CHECK(there.read());
    CHECK(there.here.retries() == 3);
  }

  TEST_CASE("a drip below the least rate is a stall") {
    opened_object there([](const seen_request& request) -> steps {
      const auto whole = answer_with(object, request);
      if (request.number > 1) return {action::send{whole}};
      return {action::send{cut(whole, 100)}, action::drip{object.substr(100'100, 500), 1, 20ms}};
    });
    there.here.terms.limits.stall_limit = 200ms;
    CHECK(there.read());
    const auto requests = there.server.requests();
    REQUIRE(requests.size() == 3);
    CHECK(requests[2].range()->begin > 100'000);
    CHECK(requests[2].range()->begin < 100'600);
  }

  TEST_CASE("stalls for ever end as timeout, with what was expected") {
    opened_object there([](const seen_request&) -> steps { return {action::stall{}}; });
    there.here.terms.limits.stall_limit = 20ms;
    there.here.terms.limits.retries = 1;
    const auto failed = there.refused();
    CHECK(failed.kind() == errc::timeout);
    CHECK(says(failed, "20 ms"));
    CHECK(there.server.requests().size() == 3);
  }

  TEST_CASE("a kept connection that dies before its answer earns a free retry, on a new one") {
    opened_object there([](const seen_request& request) -> steps {
      if (request.turn > 0) return {action::reset{}};
      return {action::send{answer_with(object, request)}};
    });
    there.here.terms.limits.retries = 0;
    CHECK(there.read());
    const auto requests = there.server.requests();
    REQUIRE(requests.size() == 3);
    CHECK(requests[2].turn == 0);
  }

  TEST_CASE("a new connection that dies before its answer costs a retry") {
    opened_object there([](const seen_request&) -> steps { return {action::reset{}}; });
    there.here.terms.limits.retries = 2;
    const auto failed = there.refused();
    CHECK(failed.kind() == errc::connect_error);
    // The free one, and two.
    CHECK(there.server.requests().size() == 5);
  }

  TEST_CASE("nobody listening is connect_error, after the retries") {
    std::string url;
    {
      scripted_server gone([](const seen_request&) -> steps { return {}; });
      url = gone.url("/x.safetensors");
    }
    storage_client here;
    here.terms.limits.retries = 2;
    const auto source = storage_client::source(url, small_name);
    const auto opened = here.open(*source);
    REQUIRE_FALSE(opened);
    CHECK(opened.error().kind() == errc::connect_error);
    CHECK(here.retries() == 2);
    CHECK(says(opened.error(), url));
  }

  TEST_CASE("redirects are followed, relative and absolute, and remembered") {
    std::atomic<int> asked{0};
    scripted_server elsewhere([](const seen_request& request) -> steps {
      return {action::send{answer_with(object, request)}};
    });
    scripted_server server([&](const seen_request& request) -> steps {
      ++asked;
      if (request.path() == "/m/" + small_name)
        return {action::send{answer(302, {{"Location", "../n/b?sig=secret"}}, "moved")}};
      return {action::send{answer(307, {{"Location", elsewhere.url("/there?sig=secret")}})}};
    });
    storage_client here;
    const auto source = storage_client::source(server.url("/m/" + small_name), small_name);
    REQUIRE(here.open(*source));
    const auto bytes = here.read(*source, 100'000, 150'000);
    REQUIRE(bytes);
    CHECK((*bytes == object.substr(100'000, 150'000)));
    CHECK(asked == 2);
    CHECK(server.requests()[1].target == "/n/b?sig=secret");
    CHECK(elsewhere.requests().size() == 2);
    CHECK(elsewhere.requests()[1].field("If-Match") == "\"v1\"");
    CHECK(here.retries() == 0);
  }

  TEST_CASE("the user's fields and credentials stay at the store that the URI names") {
    scripted_server elsewhere([](const seen_request& request) -> steps {
      return {action::send{answer_with(object, request)}};
    });
    scripted_server server([&](const seen_request& request) -> steps {
      if (request.path() == "/a/" + small_name)
        return {action::send{answer(302, {{"Location", "/b/x"}})}};
      return {action::send{answer(302, {{"Location", elsewhere.url("/c")}})}};
    });
    storage_client here;
    storage_options options;
    options.headers = {{"X-Token", "hunter2"}};
    std::string location = server.url("/a/" + small_name);
    location.insert(location.find("//") + 2, "user:pass%20word@");
    const auto source = storage_client::source(location, small_name, options);
    REQUIRE(here.open(*source));
    for (const auto& request : server.requests()) {
      CHECK(request.field("X-Token") == "hunter2");
      CHECK(request.field("Authorization") == "Basic dXNlcjpwYXNzIHdvcmQ=");
    }
    CHECK(server.requests().size() == 2);
    REQUIRE(elsewhere.requests().size() == 1);
    CHECK_FALSE(elsewhere.requests()[0].field("X-Token"));
    CHECK_FALSE(elsewhere.requests()[0].field("Authorization"));
    CHECK(elsewhere.requests()[0].field("Range") == "bytes=0-65535");
    CHECK_FALSE(source->uri().find("pass") != std::string::npos);
  }

  TEST_CASE("redirects that lead nowhere are protocol errors") {
    const std::vector<http_fields> nowhere = {
        {}, {{"Location", "ftp://host/x"}}, {{"Location", "http://["}}, {{"Location", "/loop"}}};
    for (const auto& fields : nowhere) {
      scripted_server server(
          [&fields](const seen_request&) -> steps { return {action::send{answer(302, fields)}}; });
      storage_client here;
      const auto source = storage_client::source(server.url("/x.safetensors"), small_name);
      const auto opened = here.open(*source);
      REQUIRE_FALSE(opened);
      CHECK(opened.error().kind() == errc::protocol_error);
      CHECK(server.requests().size() <= 6);
    }
  }

  TEST_CASE("a redirect that has run out is asked for again, once a range") {
    std::atomic<int> good{1};
    scripted_server server([&good](const seen_request& request) -> steps {
      if (request.path() == "/" + small_name) {
        return {action::send{
            answer(302, {{"Location", "/signed?sig=secret" + std::to_string(good.load())}})}};
      }
      if (request.target != "/signed?sig=secret" + std::to_string(good.load()))
        return {action::send{answer(403, {}, "expired")}};
      return {action::send{answer_with(object, request)}};
    });
    storage_client here;
    const auto source = storage_client::source(server.url("/x.safetensors"), small_name);
    REQUIRE(here.open(*source));
    good = 2;
    CHECK(here.read(*source, 70'000, 1'000));
    // Directly.
    const auto before = server.requests().size();
    CHECK(here.read(*source, 70'000, 1'000));
    CHECK(server.requests().size() == before + 1);
    // One that never works.
    scripted_server forbidden([](const seen_request& request) -> steps {
      if (request.path() == "/" + small_name)
        return {action::send{answer(302, {{"Location", "/signed?sig=secret"}})}};
      return {action::send{answer(403)}};
    });
    const auto other = storage_client::source(forbidden.url("/x.safetensors"), small_name);
    const auto opened = here.open(*other);
    REQUIRE_FALSE(opened);
    CHECK(opened.error().kind() == errc::access_denied);
    CHECK_FALSE(says(opened.error(), "secret"));
    CHECK(forbidden.requests().size() == 4);
  }

  TEST_CASE("a stop ends a range wherever it is") {
    struct place {
      const char* name;
      std::function<steps(const seen_request&)> answers;
    };
    const std::vector<place> places = {
        {"head", [](const seen_request&) -> steps { return {action::stall{}}; }},
        {"body",
         [](const seen_request& request) -> steps {
           return {action::send{cut(answer_with(object, request), 1'000)}, action::stall{}};
         }},
        {"refusal",
         [](const seen_request&) -> steps {
           return {action::send{"HTTP/1.1 503 Busy\r\nContent-Length: 9\r\n\r\nhal"},
                   action::stall{}};
         }},
        {"pause",
         [](const seen_request&) -> steps {
           return {action::send{answer(503, {{"Retry-After", "50"}})}};
         }},
    };
    for (const auto& [name, answers] : places) {
      CAPTURE(name);
      opened_object there(answers);
      std::stop_source stop;
      const std::jthread stopper([&] {
        CHECK(there.server.wait_for_requests(2));
        stop.request_stop();
      });
      std::string bytes(150'000, '\0');
      buffer_sink sink(std::as_writable_bytes(std::span(bytes)));
      const auto done = there.here.run(with_stop(
          stop.get_token(),
          there.source->read(there.here.services, there.here.terms, {100'000, 150'000}, sink)));
      REQUIRE_FALSE(done);
      CHECK(done.error().kind() == errc::cancelled);
      CHECK(there.server.requests().size() == 2);
    }
  }

  TEST_CASE("a stop ends an attempt to connect") {
    // An address that answers nothing; where there is no such network, it refuses at once, and the
    // pauses are what is stopped.
    storage_client here;
    here.terms.limits.retries = 1'000'000;
    here.terms.limits.shortest_pause = 20ms;
    const auto source = storage_client::source("http://192.0.2.1:9/x.safetensors", small_name);
    std::string first(10, '\0');
    std::stop_source stop;
    const std::jthread stopper([&] { stop.request_stop(); });
    const auto done = here.run(with_stop(
        stop.get_token(),
        source->open(here.services, here.terms, std::as_writable_bytes(std::span(first)))));
    REQUIRE_FALSE(done);
    CHECK(done.error().kind() == errc::cancelled);
  }

  TEST_CASE("read_object brings a whole object, small or large, up to its limit") {
    // The name says how large it is.
    scripted_server server([](const seen_request& request) -> steps {
      return {action::send{
          answer_with(object.substr(0, std::stoul(request.path().substr(3))), request)}};
    });
    storage_client here;
    for (const std::size_t size : {0U, 1U, 65'535U, 65'536U, 65'537U, 300'000U}) {
      const auto source = storage_client::source(server.url("/m"), std::to_string(size));
      const auto read = here.run(read_object(*source, here.services, here.terms, 300'000));
      REQUIRE(read);
      CHECK((std::string(reinterpret_cast<const char*>(read->data()), read->size()) ==
             object.substr(0, size)));
    }
    const auto source = storage_client::source(server.url("/m"), "300000");
    const auto refused = here.run(read_object(*source, here.services, here.terms, 299'999));
    REQUIRE_FALSE(refused);
    CHECK(refused.error().kind() == errc::invalid_request);
    CHECK(server.requests().back().target == "/m/300000");
  }

  TEST_CASE("names, queries and single files make the target that was meant") {
    scripted_server server([](const seen_request& request) -> steps {
      return {action::send{answer_with(object, request)}};
    });
    storage_client here;
    const auto asked = [&](const std::string& location, const std::string& name) {
      const auto source = storage_client::source(server.url(location), name);
      REQUIRE(here.open(*source));
      CHECK(source->uri().find("sig=") == std::string::npos);
      return server.requests().back().target;
    };
    CHECK(asked("/m/", "a b#.safetensors") == "/m/a%20b%23.safetensors");
    CHECK(asked("/m//", "sub/x.bin") == "/m/sub/x.bin");
    CHECK(asked("/m?sig=1", "x.bin") == "/m/x.bin?sig=1");
    CHECK(asked("/a%20b/c%2Bd.safetensors?sig=1&x=2", "c%2Bd.safetensors") ==
          "/a%20b/c%2Bd.safetensors?sig=1&x=2");
    CHECK(asked("", "x.bin") == "/x.bin");
  }

  TEST_CASE("bytes that come unasked after an answer are never taken for the next one") {
    opened_object there([](const seen_request& request) -> steps {
      if (request.number == 1) {
        return {action::send{
            answer_with(object, request) +
            "HTTP/1.1 206 Partial Content\r\nContent-Length: 150000\r\nETag: \"v1\"\r\n"
            "Content-Range: bytes 100000-249999/300000\r\n\r\n" +
            std::string(150'000, 'x')}};
      }
      return {action::send{answer_with(object, request)}};
    });
    CHECK(there.read());
    CHECK(there.read());
    CHECK(there.server.connections() >= 1);
  }
}

}  // namespace
}  // namespace headrace
