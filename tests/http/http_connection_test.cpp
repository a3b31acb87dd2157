#include <headrace/http/http_connection.hpp>

#include <headrace/coro/sync_wait.hpp>

#include <doctest/doctest.h>
#include <support/scripted_stream.hpp>

#include <array>
#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace headrace {
namespace {

using namespace std::string_literals;
using test::scripted_stream;
using test::stream_script;

http_request usual_request(std::string method = "GET") {
  http_request request;
  request.method = std::move(method);
  request.host = "example.com";
  return request;
}

struct peer {
  std::shared_ptr<stream_script> script = std::make_shared<stream_script>();
  http_connection connection{std::make_unique<scripted_stream>(script)};

  explicit peer(std::string answer = {}) {
    if (!answer.empty()) script->says(std::move(answer));
  }

  result<http_response_head> send(http_request request = usual_request()) {
    return sync_wait(connection.send(std::move(request)));
  }
  result<std::size_t> receive(buffer_sequence destination) {
    return sync_wait(connection.receive_body(destination));
  }
  result<std::size_t> receive(std::string& into) {
    const std::array<iovec, 1> buffers{iovec{into.data(), into.size()}};
    return receive(buffers);
  }
  result<std::string> text(std::size_t limit = 1 << 20) {
    return sync_wait(connection.read_text(limit));
  }

  // The body, taken in pieces of at most `step`.
  result<std::string> body(std::size_t step = 7) {
    std::string whole;
    while (true) {
      std::string piece(step, '\0');
      auto received = receive(piece);
      if (!received) return failure{std::move(received).error()};
      if (*received == 0) return whole;
      whole.append(piece, 0, *received);
    }
  }
};

std::string pattern(std::size_t size) {
  std::string text(size, '\0');
  for (std::size_t at = 0; at < size; ++at) text[at] = static_cast<char>('a' + at % 23);
  return text;
}

std::string with_length(const std::string& body) {
  return "HTTP/1.1 200 OK\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

error refusal(const std::string& answer, const std::string& method = "GET") {
  peer server(answer);
  auto head = server.send(usual_request(method));
  INFO(answer);
  REQUIRE_FALSE(head);
  CHECK_FALSE(server.connection.reusable());
  CHECK(head.error().context().peer == "192.0.2.7:80");
  auto again = server.send();
  REQUIRE_FALSE(again);
  return head.error();
}

TEST_SUITE("unit") {
  TEST_CASE("an exchange sends the request and gives head and body, and the next one can follow") {
    peer server(with_length("hello"));
    CHECK(server.connection.fresh());
    CHECK(server.connection.reusable());
    auto head = server.send();
    REQUIRE(head);
    CHECK(server.script->sent.starts_with("GET / HTTP/1.1\r\nHost: example.com\r\n"));
    CHECK(head->status() == 200);
    CHECK(head->body_size() == 5);
    CHECK(server.connection.answer_started());
    CHECK(server.connection.fresh());
    CHECK_FALSE(server.connection.reusable());
    auto body = server.body();
    REQUIRE(body);
    CHECK(*body == "hello");
    CHECK(server.connection.reusable());
    CHECK_FALSE(server.connection.fresh());
    CHECK(server.connection.body_received() == 5);
    CHECK(server.connection.bytes_received() == with_length("hello").size());

    server.script->says(with_length("again"));
    head = server.send();
    REQUIRE(head);
    CHECK(server.connection.body_received() == 0);
    body = server.text();
    REQUIRE(body);
    CHECK(*body == "again");
    CHECK(server.connection.reusable());
  }

  TEST_CASE("an answer may be cut at every byte") {
    const std::string answer =
        "HTTP/1.1 100 Continue\r\nX: y\r\n\r\nHTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-9/10\r\nETag: \"e\"\r\n"
        "Content-Length: 10\r\nX-Empty:\r\n\r\n0123456789";
    for (std::size_t cut = 1; cut < answer.size(); ++cut) {
      CAPTURE(cut);
      peer server;
      server.script->says(answer.substr(0, cut)).says(answer.substr(cut));
      auto head = server.send();
      REQUIRE(head);
      CHECK(head->status() == 206);
      CHECK(head->reason() == "Partial Content");
      CHECK(head->field_count() == 4);
      CHECK(head->field("content-range") == "bytes 0-9/10");
      CHECK(head->field("x-empty") == "");
      auto body = server.body(4);
      REQUIRE(body);
      CHECK(*body == "0123456789");
      CHECK(server.connection.reusable());
    }
  }

  TEST_CASE("an answer may come byte by byte") {
    for (
        const char* answer :
        {"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n0123456789",
         "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n012\r\n7;ext=\"v\"\r\n3456789\r\n0\r\nTrailer: x\r\n\r\n"}) {
      peer server(answer);
      server.script->piece_limit = 1;
      auto head = server.send();
      REQUIRE(head);
      CHECK(head->field_count() == 1);
      auto body = server.body();
      REQUIRE(body);
      CHECK(*body == "0123456789");
      CHECK(server.connection.reusable());
    }
  }

  TEST_CASE("a body is received straight into its destination, and never beyond its end") {
    const std::string body = pattern(100);
    peer server;
    server.script->says("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n" + body.substr(0, 10))
        .says(body.substr(10) + "MORE");
    REQUIRE(server.send());
    std::string into(60, '-');
    auto received = server.receive(into);
    REQUIRE(received);
    CHECK(*received == 10);  // what came along with the head
    received = server.receive(into);
    REQUIRE(received);
    CHECK(*received == 60);
    CHECK(server.script->destinations.back() == into.data());
    CHECK(into == body.substr(10, 60));
    received = server.receive(into);
    REQUIRE(received);
    CHECK(*received == 30);
    CHECK(server.script->asked.back() == 30);
    CHECK(into.substr(0, 30) == body.substr(70));
    CHECK(into.substr(30) == body.substr(40, 30));  // untouched
    received = server.receive(into);
    REQUIRE(received);
    CHECK(*received == 0);
    CHECK(server.script->answers.front().bytes == "MORE");
  }

  TEST_CASE("a body is scattered over several buffers, wherever head and buffers are cut") {
    const std::string body = pattern(64);
    for (std::size_t along = 0; along <= body.size(); along += 5) {
      for (std::size_t first = 1; first < 64; first += 9) {
        CAPTURE(along);
        CAPTURE(first);
        peer server;
        server.script->says("HTTP/1.1 200 OK\r\nContent-Length: 64\r\n\r\n" +
                            body.substr(0, along));
        if (along < body.size()) server.script->says(body.substr(along) + "NEXT");
        REQUIRE(server.send());
        std::string target(80, '-');
        std::size_t done = 0;
        while (done < 64) {
          // The same places however much has come: the vectors that are left of [first, 3, rest].
          std::vector<iovec> buffers;
          std::size_t begin = 0;
          for (const std::size_t end : {first, first + 3, target.size()}) {
            if (end > done)
              buffers.push_back(
                  {target.data() + std::max(begin, done), end - std::max(begin, done)});
            begin = end;
          }
          auto received = server.receive(buffers);
          REQUIRE(received);
          REQUIRE(*received > 0);
          done += *received;
        }
        CHECK(done == 64);
        CHECK(target == body + std::string(16, '-'));
        CHECK(server.connection.body_complete());
      }
    }
  }

  TEST_CASE("a chunked body is put together, wherever it and its destination are cut") {
    const std::string body = pattern(40);
    const std::string answer = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n" +
                               body.substr(0, 1) + "\r\n1e;a=b;c=\"d;e\"\r\n" + body.substr(1, 30) +
                               "\r\n0009\r\n" + body.substr(31) + "\r\n000\r\nA: b\r\nC: d\r\n\r\n";
    for (const std::size_t step : {1, 2, 3, 29, 30, 31, 39, 40, 41, 1000}) {
      for (std::size_t cut = 1; cut < answer.size(); ++cut) {
        peer server;
        server.script->says(answer.substr(0, cut)).says(answer.substr(cut));
        auto head = server.send();
        REQUIRE(head);
        CHECK(head->chunked());
        auto received = server.body(step);
        REQUIRE(received);
        CHECK(*received == body);
        CHECK(server.connection.reusable());
        CHECK(server.connection.body_received() == 40);
      }
    }
  }

  TEST_CASE("a body without a length ends where the peer closes, and the connection with it") {
    peer server;
    server.script->says("HTTP/1.0 200 OK\r\n\r\nab").says("cd");
    auto head = server.send();
    REQUIRE(head);
    CHECK(head->ends_at_close());
    auto body = server.text();
    REQUIRE(body);
    CHECK(*body == "abcd");
    CHECK(server.connection.body_complete());
    CHECK_FALSE(server.connection.reusable());
    CHECK_FALSE(server.send());
  }

  TEST_CASE("answers that have no body end with their head") {
    for (const auto& [method, answer] :
         {std::pair("HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n"),
          std::pair("HEAD", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"),
          std::pair("GET", "HTTP/1.1 204 No Content\r\n\r\n"),
          std::pair("GET", "HTTP/1.1 304 Not Modified\r\nContent-Length: 100\r\n\r\n"),
          std::pair("GET", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")}) {
      peer server(answer);
      auto head = server.send(usual_request(method));
      REQUIRE(head);
      CHECK(server.connection.reusable());
      std::string into(5, '-');
      auto received = server.receive(into);
      REQUIRE(received);
      CHECK(*received == 0);
      auto text = server.text();
      REQUIRE(text);
      CHECK(text->empty());
    }
  }

  TEST_CASE("bytes after a body make the connection unfit for another request") {
    for (
        const char* answer :
        {"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nabX", "HTTP/1.1 204 No Content\r\n\r\nbody",
         "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
         "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"}) {
      peer server(answer);
      REQUIRE(server.send());
      REQUIRE(server.text());
      CHECK(server.connection.body_complete());
      CHECK_FALSE(server.connection.reusable());
      const auto again = server.send();
      REQUIRE_FALSE(again);
      CHECK(again.error().kind() == errc::internal);
    }
  }

  TEST_CASE("a connection that either side wants closed is not reused") {
    peer server("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nab");
    REQUIRE(server.send());
    REQUIRE(server.text());
    CHECK_FALSE(server.connection.reusable());

    peer other(with_length("ab"));
    auto request = usual_request();
    request.keep_alive = false;
    REQUIRE(other.send(std::move(request)));
    REQUIRE(other.text());
    CHECK_FALSE(other.connection.reusable());
  }

  TEST_CASE("a body that is cut short is never taken for the end") {
    peer server("HTTP/1.1 206 OK\r\nContent-Length: 10\r\n\r\nabc");
    REQUIRE(server.send());
    auto body = server.body();
    REQUIRE_FALSE(body);
    CHECK(body.error().kind() == errc::truncated);
    CHECK(body.error().reason() == "connection closed after 3 of 10 bytes");
    CHECK(body.error().context().status == 206);
    CHECK(body.error().context().peer == "192.0.2.7:80");
    CHECK_FALSE(server.connection.reusable());
    CHECK_FALSE(server.connection.body_complete());
    CHECK(server.connection.body_received() == 3);

    peer reset;
    reset.script->says("HTTP/1.1 206 OK\r\nContent-Length: 10\r\n\r\nabc")
        .fails({ECONNRESET, std::system_category()});
    REQUIRE(reset.send());
    body = reset.body();
    REQUIRE_FALSE(body);
    CHECK(body.error().kind() == errc::truncated);
    CHECK(body.error().reason().starts_with("connection broken after 3 of 10 bytes: "));

    const std::string chunked =
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nA: b\r\n\r\n";
    for (std::size_t cut = 47; cut < chunked.size(); ++cut) {
      peer cut_server(chunked.substr(0, cut));
      REQUIRE(cut_server.send());
      body = cut_server.body();
      REQUIRE_FALSE(body);
      CHECK(body.error().kind() == errc::truncated);
      CHECK_FALSE(cut_server.connection.reusable());
    }
  }

  TEST_CASE("a head that is cut short is a broken connection, at every byte") {
    const std::string head = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
    for (std::size_t cut = 1; cut < head.size(); ++cut) {
      peer server(head.substr(0, cut));
      const auto got = server.send();
      REQUIRE_FALSE(got);
      CHECK(got.error().kind() == errc::connect_error);
      CHECK(server.connection.answer_started());
    }
  }

  TEST_CASE("a connection that dies before its answer says that nothing of one has come") {
    peer server;
    auto head = server.send();
    REQUIRE_FALSE(head);
    CHECK(head.error().kind() == errc::connect_error);
    CHECK_FALSE(server.connection.answer_started());

    peer reset;
    reset.script->fails({ECONNRESET, std::system_category()});
    head = reset.send();
    REQUIRE_FALSE(head);
    CHECK(head.error().kind() == errc::connect_error);
    CHECK_FALSE(reset.connection.answer_started());

    peer unsendable;
    unsendable.script->send_failure = {EPIPE, std::system_category()};
    head = unsendable.send();
    REQUIRE_FALSE(head);
    CHECK(head.error().kind() == errc::connect_error);
    CHECK_FALSE(unsendable.connection.answer_started());
  }

  TEST_CASE("what the peer sends or does before it was asked is found before anything is sent") {
    peer server(with_length("x"));
    server.script->stale = true;
    const auto head = server.send();
    REQUIRE_FALSE(head);
    CHECK(head.error().kind() == errc::connect_error);
    CHECK(server.script->sent.empty());
    CHECK_FALSE(server.connection.answer_started());
    CHECK_FALSE(server.connection.reusable());
  }

  TEST_CASE("a request that cannot be sent leaves the connection as it was") {
    peer server(with_length("x"));
    auto request = usual_request();
    request.target = "/a\r\nb";
    const auto refused = server.send(std::move(request));
    REQUIRE_FALSE(refused);
    CHECK(refused.error().kind() == errc::invalid_request);
    CHECK(server.script->sent.empty());
    CHECK(server.connection.reusable());
    CHECK(server.send());
  }

  TEST_CASE("a stop ends an exchange with the kind cancelled") {
    std::stop_source stop;
    stop.request_stop();
    peer server(with_length("hello"));
    auto head = sync_wait(server.connection.send(usual_request()), stop.get_token());
    REQUIRE_FALSE(head);
    CHECK(head.error().kind() == errc::cancelled);
    CHECK_FALSE(server.connection.reusable());

    peer other("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n");
    REQUIRE(other.send());
    std::string into(5, '-');
    const std::array<iovec, 1> buffers{iovec{into.data(), into.size()}};
    const auto received = sync_wait(other.connection.receive_body(buffers), stop.get_token());
    REQUIRE_FALSE(received);
    CHECK(received.error().kind() == errc::cancelled);
    CHECK_FALSE(other.connection.reusable());
  }

  TEST_CASE("interim answers are skipped, but not endlessly") {
    std::string answer;
    for (int count = 0; count < 8; ++count) answer += "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n";
    peer server(answer + with_length("ok"));
    const auto head = server.send();
    REQUIRE(head);
    CHECK(head->status() == 200);
    CHECK_FALSE(head->field("Link"));
    CHECK(*server.text() == "ok");

    CHECK(refusal(answer + "HTTP/1.1 100 Continue\r\n\r\n" + with_length("ok")).kind() ==
          errc::protocol_error);
    CHECK(refusal("HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n")
              .kind() == errc::protocol_error);
  }

  TEST_CASE("a head has limits: bytes in all and fields") {
    const auto head_of = [](std::size_t size) {
      std::string head = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX: ";
      head.append(size - head.size() - 4, 'x').append("\r\n\r\n");
      return head;
    };
    peer server(head_of(64 * 1024));
    CHECK(server.send());
    CHECK(server.connection.reusable());
    CHECK(refusal(head_of(64 * 1024 + 1)).kind() == errc::protocol_error);
    CHECK(refusal(head_of(10'000'000)).kind() == errc::protocol_error);
    CHECK(refusal("HTTP/1.1 200 " + std::string(100'000, 'x')).kind() == errc::protocol_error);
    CHECK(refusal("HTTP/1.1 200 OK\r\n" + std::string(100'000, 'x')).kind() ==
          errc::protocol_error);
    // Interim heads count as well.
    CHECK(refusal("HTTP/1.1 103 x\r\nX: " + std::string(40'000, 'x') +
                  "\r\n\r\nHTTP/1.1 200 OK\r\nX: " + std::string(40'000, 'x') +
                  "\r\nContent-Length: 0\r\n\r\n")
              .kind() == errc::protocol_error);

    const auto fields = [](int count) {
      std::string head = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n";
      for (int at = 1; at < count; ++at) head += "X: y\r\n";
      return head + "\r\n";
    };
    peer many(fields(100));
    const auto head = many.send();
    REQUIRE(head);
    CHECK(head->field_count() == 100);
    CHECK(refusal(fields(101)).kind() == errc::protocol_error);
  }

  TEST_CASE("an answer whose framing has two readings is refused") {
    const std::string status = "HTTP/1.1 200 OK\r\n";
    for (
        const std::string& head : {
            std::string("Content-Length: 5\r\nContent-Length: 5\r\n"),
            std::string("Content-Length: 5\r\nContent-Length: 6\r\n"),
            std::string("Content-Length: 5\r\ncontent-length: 5\r\n"),
            std::string("Content-Length: 5, 5\r\n"),
            std::string("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n"),
            std::string("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n"),
            std::string("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"),
            std::string("Transfer-Encoding: gzip, chunked\r\n"),
            std::string("Transfer-Encoding: chunked, gzip\r\n"),
            std::string("Transfer-Encoding: gzip\r\n"),
            std::string("Transfer-Encoding: identity\r\n"),
            std::string("Transfer-Encoding: xchunked\r\n"),
            std::string("Transfer-Encoding:\r\n"),
            std::string("Content-Length: -1\r\n"),
            std::string("Content-Length: +1\r\n"),
            std::string("Content-Length: 0x10\r\n"),
            std::string("Content-Length: 1 2\r\n"),
            std::string("Content-Length:\r\n"),
            std::string("Content-Length: 18446744073709551616\r\n"),
            std::string("Content-Length: 99999999999999999999999\r\n"),
            std::string(
                "Content-Range: bytes 0-4/5\r\nContent-Length: 5\r\nContent-Range: bytes 0-4/5\r\n"),
            std::string("ETag: \"a\"\r\nContent-Length: 5\r\nETag: \"b\"\r\n"),
            std::string("Location: /a\r\nContent-Length: 5\r\nLocation: /b\r\n"),
            std::string("Content-Encoding: gzip\r\nContent-Length: 5\r\n"),
            std::string("Content-Encoding: identity, gzip\r\nContent-Length: 5\r\n"),
            std::string("Content-Length : 5\r\n"),
            std::string("Content-Length\r\n"),
            std::string(": 5\r\n"),
            std::string("A B: 5\r\n"),
            std::string("Content-Length: 5\r\n X: folded\r\n"),
            std::string("X: a\r\n\tb\r\nContent-Length: 5\r\n"),
            std::string(" X: a\r\nContent-Length: 5\r\n"),
            "X: a\0b\r\nContent-Length: 5\r\n"s,
            std::string("X: a\x01"
                        "b\r\nContent-Length: 5\r\n"),
        }) {
      const auto refused = refusal(status + head + "\r\nhello");
      CHECK(refused.kind() == errc::protocol_error);
    }
    CHECK(refusal("HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").kind() ==
          errc::protocol_error);
  }

  TEST_CASE("lines end in CR LF and nothing else") {
    const std::string good = "HTTP/1.1 200 OK\r\nA: b\r\nContent-Length: 5\r\n\r\n";
    for (std::size_t at = 0; at < good.size(); ++at) {
      if (good[at] != '\r' && good[at] != '\n') continue;
      CAPTURE(at);
      auto without = good;
      without.erase(at, 1);
      CHECK(refusal(without + "hello").kind() == errc::protocol_error);
      for (const std::string& other : {"\r"s, "\n"s, "\r\r"s, "\n\n"s, "\0"s}) {
        if (good.substr(at, 1) == other) continue;
        if (at + 1 == good.size() && other == "\n\n")
          continue;  // what is too much there is the body's
        auto replaced = good;
        replaced.replace(at, 1, other);
        CAPTURE(replaced);
        CHECK(refusal(replaced + "hello").kind() == errc::protocol_error);
      }
    }
    // Inside a value as well: that is how an answer is split.
    CHECK(refusal("HTTP/1.1 200 OK\r\nX: a\rContent-Length: 0\r\nContent-Length: 5\r\n\r\nhello")
              .kind() == errc::protocol_error);
    CHECK(refusal("HTTP/1.1 200 OK\r\nX: a\nContent-Length: 0\r\n\r\nhello").kind() ==
          errc::protocol_error);
    CHECK(refusal("HTTP/1.1 200 O\rK\r\nContent-Length: 0\r\n\r\n").kind() == errc::protocol_error);
  }

  TEST_CASE("what is not HTTP/1.0 or HTTP/1.1 is refused") {
    for (const char* answer :
         {"<html>hello</html>", "HTTP/0.9 200 OK\r\n\r\n", "HTTP/2.0 200 OK\r\n\r\n",
          "HTTP/2 200\r\n\r\n", "HTTP/1.2 200 OK\r\n\r\n", "HTTP/1.10 200 OK\r\n\r\n",
          "http/1.1 200 OK\r\n\r\n", "HTTP/1.1 99 OK\r\n\r\n", "HTTP/1.1 1000 OK\r\n\r\n",
          "HTTP/1.1 2x0 OK\r\n\r\n", "HTTP/1.1 -20 OK\r\n\r\n", "HTTP/1.1  200 OK\r\n\r\n",
          "HTTP/1.1 000 OK\r\n\r\n", "ICY 200 OK\r\n\r\n",
          "\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
          " HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
          "SSH-2.0-OpenSSH_9\r\n", "\x16\x03\x01"}) {
      CHECK(refusal(answer).kind() == errc::protocol_error);
    }
  }

  TEST_CASE("malformed chunks are refused") {
    for (const char* chunks :
         {"5\nhello\r\n0\r\n\r\n", "5\r\nhello\n0\r\n\r\n", "5\r\nhello\r\n0\n\r\n",
          "5\r\nhello\r\n0\r\n\n", "5\r\nhelloX\r\n0\r\n\r\n", "5\rXhello\r\n0\r\n\r\n",
          "0x5\r\nhello\r\n0\r\n\r\n", "-5\r\nhello\r\n0\r\n\r\n", "+5\r\nhello\r\n0\r\n\r\n",
          "5 \r\nhello\r\n0\r\n\r\n", " 5\r\nhello\r\n0\r\n\r\n", "\r\nhello\r\n0\r\n\r\n",
          "g\r\nhello\r\n0\r\n\r\n", "10000000000000000\r\nhello\r\n0\r\n\r\n",
          "5;a=\rb\r\nhello\r\n0\r\n\r\n", "5;a=b\nhello\r\n0\r\n\r\n",
          "5\r\nhello\r\n0\r\nA: b\n\r\n", "5\r\nhello\r\n0\r\nA b\r\n\r\n",
          "5\r\nhello\r\n5\r\nhello0\r\n\r\n"}) {
      CAPTURE(chunks);
      peer server(std::string("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n") + chunks);
      REQUIRE(server.send());
      const auto body = server.body();
      REQUIRE_FALSE(body);
      CHECK(body.error().kind() == errc::protocol_error);
      CHECK_FALSE(server.connection.reusable());
      std::string into(9, '-');
      CHECK_FALSE(server.receive(into));
    }
  }

  TEST_CASE("what stands between the bytes of a chunked body has a limit") {
    const std::string head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    const auto outcome = [&head](const std::string& chunks) {
      peer server(head + chunks);
      REQUIRE(server.send());
      return server.body(100'000);
    };
    const std::string much(20'000, 'x');
    const std::string little(10'000, 'x');
    CHECK(outcome("5;a=" + little + "\r\nhello\r\n0\r\n\r\n"));
    CHECK(outcome("5;a=" + little + "\r\nhello\r\n5;a=" + little + "\r\nhello\r\n0\r\n\r\n"));
    for (const std::string& chunks :
         {"5;a=" + much + "\r\nhello\r\n0\r\n\r\n", "5;" + much + "\r\nhello\r\n0\r\n\r\n",
          std::string(20'000, '0') + "5\r\nhello\r\n0\r\n\r\n",
          "5\r\nhello\r\n0;" + much + "\r\n\r\n", "5\r\nhello\r\n0\r\nA: " + much + "\r\n\r\n"}) {
      const auto body = outcome(chunks);
      REQUIRE_FALSE(body);
      CHECK(body.error().kind() == errc::protocol_error);
    }
    std::string trailers;
    for (int count = 0; count < 100'000; ++count) trailers += "A: b\r\n";
    const auto body = outcome("5\r\nhello\r\n0\r\n" + trailers + "\r\n");
    REQUIRE_FALSE(body);
    CHECK(body.error().kind() == errc::protocol_error);
  }

  TEST_CASE("text is read to the end, up to a limit") {
    for (const std::string& answer :
         {with_length(pattern(10'000)),
          "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2710\r\n" + pattern(10'000) +
              "\r\n0\r\n\r\n",
          "HTTP/1.0 200 OK\r\n\r\n" + pattern(10'000)}) {
      for (const std::size_t piece : {1, 1000, 1 << 20}) {
        for (const std::size_t limit :
             {std::size_t{10'000}, std::size_t{10'001}, std::size_t{1} << 20, SIZE_MAX}) {
          peer server(answer);
          server.script->piece_limit = piece;
          REQUIRE(server.send());
          const auto text = server.text(limit);
          REQUIRE(text);
          CHECK(*text == pattern(10'000));
        }
        for (const std::size_t limit : {std::size_t{0}, std::size_t{1}, std::size_t{9'999}}) {
          peer server(answer);
          server.script->piece_limit = piece;
          REQUIRE(server.send());
          const auto text = server.text(limit);
          REQUIRE_FALSE(text);
          CHECK(text.error().kind() == errc::protocol_error);
          CHECK_FALSE(server.connection.reusable());
        }
      }
    }
  }

  TEST_CASE("a length that nobody could hold costs nothing") {
    peer server("HTTP/1.1 200 OK\r\nContent-Length: 18446744073709551615\r\n\r\nabc");
    auto head = server.send();
    REQUIRE(head);
    CHECK(head->body_size() == UINT64_MAX);
    auto text = server.text(1000);
    REQUIRE_FALSE(text);
    CHECK(text.error().kind() == errc::protocol_error);

    peer chunked("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\nabc");
    REQUIRE(chunked.send());
    text = chunked.text(1000);
    REQUIRE_FALSE(text);
    CHECK(text.error().kind() == errc::truncated);
  }

  TEST_CASE("the body of an encoded error is skipped") {
    peer server(
        "HTTP/1.1 503 Busy\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\n\x1f\x8b\x08");
    const auto head = server.send();
    REQUIRE(head);
    CHECK(head->status() == 503);
    const auto text = server.text(1000);
    REQUIRE(text);
    CHECK(text->empty());
    CHECK(server.connection.reusable());
  }

  TEST_CASE("an empty destination receives nothing and ends nothing") {
    peer server(with_length("hello"));
    REQUIRE(server.send());
    auto received = server.receive(buffer_sequence());
    REQUIRE(received);
    CHECK(*received == 0);
    CHECK_FALSE(server.connection.body_complete());
    CHECK(*server.text() == "hello");
  }

  TEST_CASE("a body is not asked for while there is no answer, nor a request sent into one") {
    peer server(with_length("hello"));
    REQUIRE(server.send());
    auto early = server.send();
    REQUIRE_FALSE(early);
    CHECK(early.error().kind() == errc::internal);
    CHECK(*server.text() == "hello");

    peer dead;
    REQUIRE_FALSE(dead.send());
    std::string into(5, '-');
    CHECK_FALSE(dead.receive(into));
    CHECK_FALSE(dead.text());
  }

  TEST_CASE("messages hold no values of fields and no target") {
    auto request = usual_request();
    request.target = "/object?X-Amz-Signature=topsecret";
    request.fields.emplace_back("Authorization", "topsecret");
    for (const char* answer :
         {"HTTP/1.1 200 OK\r\nContent-Length: topsecret\r\n\r\n",
          "HTTP/1.1 200 OK\r\nContent-Encoding: topsecret\r\n\r\n", "topsecret", ""}) {
      peer server(answer);
      const auto head = server.send(request);
      REQUIRE_FALSE(head);
      CHECK(std::string(head.error().what()).find("topsecret") == std::string::npos);
    }
  }

  TEST_CASE("no mutation of an answer crashes, hangs, or gives more of a body than there is") {
    const std::array<std::string, 4> seeds{
        "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-9/10\r\nETag: \"e\"\r\nContent-Length: 10\r\n\r\n0123456789",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;a=b\r\n012\r\n7\r\n3456789\r\n0\r\nT: x\r\n\r\n",
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 3\r\n\r\nabc",
        "HTTP/1.1 503 Busy\r\nRetry-After: 1\r\nConnection: close\r\nContent-Encoding: gzip\r\n\r\nbody"};
    const std::string interesting = "\r\n\0:; \tHTTP/1.0295fF,\"-+"s;
    std::minstd_rand random(20260101);
    const auto below = [&random](std::size_t limit) {
      return static_cast<std::size_t>(random()) % limit;
    };
    for (int round = 0; round < 20'000; ++round) {
      std::string answer = seeds[below(seeds.size())];
      for (std::size_t change = 0; change <= below(4); ++change) {
        const std::size_t at = below(answer.size());
        switch (below(5)) {
          case 0:
            answer[at] = static_cast<char>(random());
            break;
          case 1:
            answer[at] = interesting[below(interesting.size())];
            break;
          case 2:
            answer.erase(at, 1 + below(5));
            break;
          case 3:
            answer.insert(at, answer.substr(below(answer.size()), below(20)));
            break;
          default:
            answer.insert(at, 1, interesting[below(interesting.size())]);
            break;
        }
        if (answer.empty()) answer = "H";
      }
      peer server(answer);
      server.script->piece_limit = 1 + below(40);
      const auto head = server.send();
      if (!head) {
        const auto kind = head.error().kind();
        CHECK((kind == errc::protocol_error || kind == errc::connect_error));
        continue;
      }
      CHECK(head->status() >= 200);
      const auto body = server.body(1 + below(20));
      if (body) {
        CHECK(server.connection.body_complete());
        if (head->body_size()) CHECK(body->size() == *head->body_size());
        CHECK(body->size() <= answer.size());
      } else {
        const auto kind = body.error().kind();
        CHECK((kind == errc::protocol_error || kind == errc::truncated));
      }
    }
  }
}

}  // namespace
}  // namespace headrace
