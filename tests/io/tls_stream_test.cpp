#include <headrace/io/tls_stream.hpp>

#include <headrace/base/log.hpp>

#include <doctest/doctest.h>
#include <support/checkpoint.hpp>
#include <support/test_loop.hpp>
#include <support/tls_conversation.hpp>

#include <array>
#include <chrono>
#include <cstring>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

using namespace headrace;
using namespace std::chrono_literals;

namespace {

using stream_pointer = std::unique_ptr<byte_stream>;
using conversation_pointer = std::shared_ptr<test::tls_conversation>;

const test::authority& trusted() {
  static const test::authority made;
  return made;
}

/// Where a test's certificates are: `ca.pem` is what clients trust.
const test::temporary_directory& directory() {
  static const test::temporary_directory made;
  static const bool written = [] {
    made.write("ca.pem", trusted().certificate());
    return true;
  }();
  static_cast<void>(written);
  return made;
}

std::shared_ptr<tls_context> terms(tls_options options = {}) {
  if (options.ca_file.empty()) options.ca_file = directory().path_of("ca.pem");
  return tls_context::make(options).value();
}

test::identity for_localhost() {
  static const test::identity made = trusted().issue({.names = {"DNS:localhost"}});
  return made;
}

conversation_pointer talk(const test::tls_server& server) {
  return std::make_shared<test::tls_conversation>(server);
}

/// Answers each word of the client's with itself.
void echo(test::tls_conversation& with, const std::string& said) { with.end.write(said); }

task<result<stream_pointer>> connect(io_context* loop, conversation_pointer with,
                                     std::shared_ptr<tls_context> by,
                                     std::string host = "localhost",
                                     std::chrono::nanoseconds limit = 20s) {
  auto transport = std::make_unique<test::conversation_stream>(std::move(with));
  auto secured =
      co_await secure(*loop, std::move(transport), std::move(by), std::move(host), limit);
  co_return secured;
}

task<io_result<std::string>> receive_some(byte_stream* from, std::size_t room = 64 * 1024) {
  std::string bytes(room, '\0');
  const std::array<iovec, 1> into{iovec{bytes.data(), bytes.size()}};
  auto received = co_await from->receive(into);
  if (!received) co_return failure{received.error()};
  bytes.resize(*received);
  co_return bytes;
}

/// Up to the end of the stream, or `size` bytes.
task<io_result<std::string>> receive_all(byte_stream* from, std::size_t size) {
  std::string all;
  while (all.size() < size) {
    auto received = co_await receive_some(from, std::min<std::size_t>(size - all.size(), 1 << 20));
    if (!received) co_return failure{received.error()};
    if (received->empty()) break;
    all += *received;
  }
  co_return all;
}

task<io_result<void>> say(byte_stream* to, std::string text) {
  auto sent = co_await to->send(std::as_bytes(std::span(text)));
  co_return sent;
}

task<io_result<std::string>> ask(byte_stream* to, std::string text) {
  const std::size_t size = text.size();
  auto sent = co_await say(to, std::move(text));
  if (!sent) co_return failure{sent.error()};
  auto answered = co_await receive_all(to, size);
  co_return answered;
}

/// The error of a handshake that must fail.
error refused(const test::tls_server_options& options, const std::string& host = "localhost",
              std::shared_ptr<tls_context> by = terms()) {
  test::test_loop here;
  const test::tls_server server(options);
  const auto with = talk(server);
  auto secured = here.run(connect(&here.loop, with, std::move(by), host));
  REQUIRE_FALSE(secured);
  CHECK(with->destroyed);
  return secured.error();
}

bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

constexpr std::array<int, 2> versions{TLS1_2_VERSION, TLS1_3_VERSION};

test::tls_server_options only(int version) {
  return {.self = for_localhost(),
          .client_authority = {},
          .least_version = version,
          .most_version = version};
}

}  // namespace

TEST_SUITE("unit") {
  TEST_CASE("a name is sent, checked and talked to, by either version") {
    for (const int version : versions) {
      test::test_loop here;
      const test::tls_server server(only(version));
      const auto with = talk(server);
      with->answer = &echo;
      auto stream = here.run(connect(&here.loop, with, terms())).value();
      CHECK(with->end.server_name() == "localhost");
      CHECK(with->end.protocol() == "http/1.1");
      CHECK(with->end.version() == (version == TLS1_2_VERSION ? "TLSv1.2" : "TLSv1.3"));
      CHECK(stream->peer() == "192.0.2.7:443");
      CHECK(here.run(ask(stream.get(), "hello")).value() == "hello");
      stream.reset();
      CHECK(with->destroyed);
    }
  }

  TEST_CASE("an address is checked against addresses, and sent to nobody as a name") {
    for (const char* const host : {"127.0.0.1", "::1", "[::1]"}) {
      test::test_loop here;
      const test::tls_server server(
          {.self = trusted().issue({.names = {"IP:127.0.0.1", "IP:::1"}}), .client_authority = {}});
      const auto with = talk(server);
      CHECK(here.run(connect(&here.loop, with, terms(), host)));
      CHECK(with->end.server_name().empty());
    }
    const auto wrong =
        refused({.self = trusted().issue({.names = {"IP:127.0.0.1", "DNS:::1", "IP:::2"}}),
                 .client_authority = {}},
                "::1");
    CHECK(wrong.kind() == errc::tls_error);
    CHECK(has(wrong.reason(), "not for '::1' but for '127.0.0.1', '::1', '::2'"));
  }

  TEST_CASE("the dot at the end of a name is not part of it") {
    test::test_loop here;
    const test::tls_server server({.self = for_localhost(), .client_authority = {}});
    const auto with = talk(server);
    CHECK(here.run(connect(&here.loop, with, terms(), "localhost.")));
    CHECK(with->end.server_name() == "localhost");
  }

  TEST_CASE("wildcards stand for one whole label") {
    const auto accepts = [](const char* pattern, const char* host) {
      test::test_loop here;
      const test::tls_server server(
          {.self = trusted().issue({.names = {pattern}}), .client_authority = {}});
      return here.run(connect(&here.loop, talk(server), terms(), host)).has_value();
    };
    CHECK(accepts("DNS:*.example.com", "a.example.com"));
    CHECK_FALSE(accepts("DNS:*.example.com", "a.b.example.com"));
    CHECK_FALSE(accepts("DNS:*.example.com", "example.com"));
    CHECK_FALSE(accepts("DNS:f*.example.com", "foo.example.com"));
  }

  TEST_CASE("an expired certificate is refused with the day") {
    const auto failed =
        refused({.self = trusted().issue(
                     {.names = {"DNS:localhost"}, .valid_from = -20, .valid_until = -10}),
                 .client_authority = {}});
    CHECK(failed.kind() == errc::tls_error);
    CHECK(has(failed.reason(), "certificate of 'localhost' expired on 20"));
    CHECK(has(failed.reason(), " UTC"));
    CHECK(failed.context().peer == "192.0.2.7:443");
  }

  TEST_CASE("a certificate of the future is refused, and the clock doubted") {
    const auto failed = refused(
        {.self = trusted().issue({.names = {"DNS:localhost"}, .valid_from = 10, .valid_until = 20}),
         .client_authority = {}});
    CHECK(failed.kind() == errc::tls_error);
    CHECK(has(failed.reason(), "valid only from 20"));
    CHECK(has(failed.reason(), "clock"));
  }

  TEST_CASE("another host's certificate is refused with the names that it is for") {
    const auto failed =
        refused({.self = trusted().issue(
                     {.common_name = "localhost", .names = {"DNS:one.example", "DNS:two.example"}}),
                 .client_authority = {}});
    CHECK(failed.kind() == errc::tls_error);
    CHECK(has(failed.reason(), "not for 'localhost' but for 'one.example', 'two.example'"));
  }

  TEST_CASE("a common name alone is no name") {
    const auto failed = refused({.self = trusted().issue({.common_name = "localhost", .names = {}}),
                                 .client_authority = {}});
    CHECK(failed.kind() == errc::tls_error);
    CHECK(has(failed.reason(), "no host at all"));
  }

  TEST_CASE("what a certificate says is shown in part, and never as control characters") {
    test::certificate_form form{.common_name = "evil\n\033[31m", .names = {}};
    for (int number = 0; number < 100; ++number)
      form.names.push_back("DNS:" + std::to_string(number) + std::string(200, 'x') + ".example");
    const auto failed = refused({.self = trusted().issue(form), .client_authority = {}});
    CHECK(failed.kind() == errc::tls_error);
    CHECK(failed.reason().size() < 1500);
    const auto stranger =
        refused({.self = test::authority("evil\n\033[31m").issue({.names = {"DNS:localhost"}}),
                 .client_authority = {}});
    CHECK_FALSE(has(stranger.reason(), "\n"));
    CHECK_FALSE(has(stranger.reason(), "\033"));
  }

  TEST_CASE("an unknown authority is named, and where to name it") {
    const auto failed =
        refused({.self = test::authority("somebody else").issue({.names = {"DNS:localhost"}}),
                 .client_authority = {}});
    CHECK(failed.kind() == errc::tls_error);
    CHECK(has(failed.reason(), "somebody else"));
    CHECK(has(failed.reason(), "--ca-file"));
    CHECK(has(failed.reason(), "SSL_CERT_FILE"));
  }

  TEST_CASE("an older version than 1.2 is refused") {
    const auto failed = refused({.self = for_localhost(),
                                 .client_authority = {},
                                 .least_version = TLS1_1_VERSION,
                                 .most_version = TLS1_1_VERSION});
    CHECK(failed.kind() == errc::tls_error);
    CHECK(has(failed.reason(), "neither TLS 1.2 nor TLS 1.3"));
  }

  TEST_CASE("a plain answer where TLS was expected is told as such") {
    for (const char* const answer : {"HTTP/1.1 400 Bad Request\r\n\r\n", "220 mail\r\n"}) {
      test::test_loop here;
      const test::tls_server server({.self = for_localhost(), .client_authority = {}});
      const auto with = talk(server);
      with->on_its_way = answer;
      with->closed = true;
      const auto secured = here.run(connect(&here.loop, with, terms()));
      REQUIRE_FALSE(secured);
      CHECK(secured.error().kind() == errc::tls_error);
      CHECK(has(secured.error().reason(), answer[0] == 'H' ? "http://" : "not TLS"));
    }
  }

  TEST_CASE("a peer that breaks off a handshake is a connect_error") {
    test::test_loop here;
    const test::tls_server server({.self = for_localhost(), .client_authority = {}});
    const auto closing = talk(server);
    closing->mute = closing->closed = true;
    const auto closed = here.run(connect(&here.loop, closing, terms()));
    REQUIRE_FALSE(closed);
    CHECK(closed.error().kind() == errc::connect_error);
    const auto resetting = talk(server);
    resetting->mute = true;
    resetting->failure = std::make_error_code(std::errc::connection_reset);
    const auto reset = here.run(connect(&here.loop, resetting, terms()));
    REQUIRE_FALSE(reset);
    CHECK(reset.error().kind() == errc::connect_error);
    const auto deaf = talk(server);
    deaf->send_failure = std::make_error_code(std::errc::broken_pipe);
    const auto broken = here.run(connect(&here.loop, deaf, terms()));
    REQUIRE_FALSE(broken);
    CHECK(broken.error().kind() == errc::connect_error);
  }

  TEST_CASE("a certificate of our own is shown where it is asked for") {
    const auto self = trusted().issue({.common_name = "a client", .names = {}});
    directory().write("client.pem", self.certificate);
    directory().write("client.key", self.key);
    for (const int version : versions) {
      test::test_loop here;
      auto options = only(version);
      options.client_authority = trusted().certificate();
      const test::tls_server server(options);
      const auto with = talk(server);
      with->answer = &echo;
      const auto by = terms({.certificate_file = directory().path_of("client.pem"),
                             .key_file = directory().path_of("client.key")});
      auto stream = here.run(connect(&here.loop, with, by)).value();
      CHECK(here.run(ask(stream.get(), "hello")).value() == "hello");
      CHECK(with->end.client_name() == "a client");
    }
  }

  TEST_CASE("a server that wants a certificate of ours tells so") {
    auto options = only(TLS1_2_VERSION);
    options.client_authority = trusted().certificate();
    const auto failed = refused(options);
    CHECK(failed.kind() == errc::tls_error);
    CHECK(has(failed.reason(), "client certificate"));

    // In 1.3 the handshake is over for us before the server has looked.
    options = only(TLS1_3_VERSION);
    options.client_authority = trusted().certificate();
    test::test_loop here;
    const test::tls_server server(options);
    auto stream = here.run(connect(&here.loop, talk(server), terms())).value();
    const auto received = here.run(receive_some(stream.get()));
    REQUIRE_FALSE(received);
    CHECK(kind_of(received.error()) == errc::tls_error);
    CHECK(has(received.error().message(), "certificate required"));
  }

  TEST_CASE("a stream ends by close_notify alone") {
    for (const int version : versions) {
      for (const bool orderly : {true, false}) {
        for (const bool tries : {true, false}) {
          test::test_loop here;
          const test::tls_server server(only(version));
          const auto with = talk(server);
          with->tries = tries;
          auto stream = here.run(connect(&here.loop, with, terms())).value();
          with->end.write("the last words");
          if (orderly) with->end.close_notify();
          with->push();
          with->closed = true;
          CHECK(here.run(receive_some(stream.get())).value() == "the last words");
          for (int again = 0; again < 2; ++again) {
            const auto received = here.run(receive_some(stream.get()));
            CHECK(received.has_value() == orderly);
            if (received) CHECK(received->empty());
            if (!received) {
              CHECK(kind_of(received.error()) == errc::connect_error);
              CHECK(has(received.error().message(), "close_notify"));
            }
          }
          CHECK(stream->stale());
        }
      }
    }
  }

  TEST_CASE("a record that is cut off is never taken for content") {
    test::test_loop here;
    const test::tls_server server({.self = for_localhost(), .client_authority = {}});
    const auto with = talk(server);
    auto stream = here.run(connect(&here.loop, with, terms())).value();
    with->end.write(std::string(1000, 'x'));
    with->push();
    with->on_its_way.pop_back();
    with->closed = true;
    const auto received = here.run(receive_some(stream.get()));
    REQUIRE_FALSE(received);
    CHECK(kind_of(received.error()) == errc::connect_error);
  }

  TEST_CASE("bytes that come one at a time make the same conversation") {
    for (const int version : versions) {
      for (const bool tries : {true, false}) {
        test::test_loop here;
        const test::tls_server server(only(version));
        const auto with = talk(server);
        with->answer = &echo;
        with->tries = tries;
        with->piece = 1;
        auto stream = here.run(connect(&here.loop, with, terms())).value();
        const std::string text = test::content_of("one at a time", 3000);
        CHECK(here.run(ask(stream.get(), text)).value() == text);
        CHECK(with->waits > 3000);
      }
    }
  }

  TEST_CASE("records may be cut anywhere") {
    for (const int version : versions) {
      for (const bool tries : {true, false}) {
        test::test_loop here;
        const test::tls_server server(only(version));
        const auto with = talk(server);
        with->tries = tries;
        auto stream = here.run(connect(&here.loop, with, terms())).value();
        std::size_t size = 1;
        for (std::size_t cut = 1; cut <= size; ++cut) {
          with->end.write("first");
          with->end.write("second");
          with->push();
          size = with->on_its_way.size();
          with->first_piece = cut;
          REQUIRE(here.run(receive_all(stream.get(), 11)).value() == "firstsecond");
        }
      }
    }
  }

  TEST_CASE("a handshake may be cut anywhere") {
    for (const int version : versions) {
      const test::tls_server server(only(version));
      for (std::size_t cut = 1; cut < 700; cut += 9) {
        test::test_loop here;
        const auto with = talk(server);
        with->answer = &echo;
        with->first_piece = cut;
        auto stream = here.run(connect(&here.loop, with, terms())).value();
        REQUIRE(here.run(ask(stream.get(), "hello")).value() == "hello");
      }
    }
  }
}

namespace {

/// Receives into many vectors at once, of odd sizes, until `size` bytes are there.
task<std::string> scatter(byte_stream* from, std::size_t size) {
  std::string all(size, '\0');
  std::size_t have = 0;
  while (have < size) {
    std::vector<iovec> vectors;
    std::size_t at = have;
    for (std::size_t step = 1; at < size && vectors.size() < max_buffers; step = step * 3 + 1) {
      const std::size_t part = std::min(size - at, step % 50'000 + 1);
      vectors.push_back({all.data() + at, part});
      at += part;
    }
    auto received = co_await from->receive(vectors);
    const std::size_t count = std::move(received).value();
    if (count == 0) break;
    have += count;
  }
  all.resize(have);
  co_return all;
}

/// The largest count of one receive of all that is there.
task<std::size_t> largest(byte_stream* from, std::size_t size) {
  std::string memory(size, '\0');
  std::size_t most = 0;
  for (std::size_t have = 0; have < size;) {
    const std::array<iovec, 1> rest{iovec{memory.data() + have, size - have}};
    auto received = co_await from->receive(rest);
    const std::size_t count = std::move(received).value();
    if (count == 0) break;
    have += count;
    most = std::max(most, count);
  }
  co_return most;
}

task<io_result<std::string>> receive_stopped(byte_stream* from) {
  std::stop_source source;
  source.request_stop();
  auto received = co_await with_stop(source.get_token(), receive_some(from));
  co_return received;
}

}  // namespace

TEST_SUITE("unit") {
  TEST_CASE("much is received in large pieces, into every vector, in order") {
    const std::string text = test::content_of("large", 5'000'000);
    for (const int version : versions) {
      for (const bool tries : {true, false}) {
        test::test_loop here;
        const test::tls_server server(only(version));
        const auto with = talk(server);
        with->tries = tries;
        auto stream = here.run(connect(&here.loop, with, terms())).value();
        with->end.write(text);
        with->push();
        CHECK((here.run(scatter(stream.get(), text.size())) == text));
        with->end.write(text);
        with->push();
        with->piece = 100'000;
        CHECK((here.run(scatter(stream.get(), text.size())) == text));
      }
    }
  }

  TEST_CASE("one receive gives what one receive of the transport may bring") {
    test::test_loop here;
    const test::tls_server server({.self = for_localhost(), .client_authority = {}});
    const auto with = talk(server);
    auto stream = here.run(connect(&here.loop, with, terms())).value();
    constexpr std::size_t size = 8 << 20;
    with->end.write(std::string(size, 'x'));
    with->push();
    const std::size_t most = here.run(largest(stream.get(), size));
    CHECK(most > 200 * 1024);
    CHECK(most < 300 * 1024);
  }

  TEST_CASE("key updates are answered, and the conversation goes on") {
    test::test_loop here;
    const test::tls_server server(only(TLS1_3_VERSION));
    const auto with = talk(server);
    with->answer = &echo;
    auto stream = here.run(connect(&here.loop, with, terms())).value();
    for (int round = 0; round < 3; ++round) {
      with->end.update_key();
      with->end.write("with a new key");
      with->push();
      CHECK(here.run(receive_some(stream.get())).value() == "with a new key");
      CHECK(here.run(ask(stream.get(), "and so do we")).value() == "and so do we");
    }
    CHECK(with->end.failure().empty());
  }

  TEST_CASE("messages without content are bounded") {
    test::test_loop here;
    auto options = only(TLS1_3_VERSION);
    const test::tls_server server(options);
    for (const bool tickets : {true, false}) {
      const auto with = talk(server);
      auto stream = here.run(connect(&here.loop, with, terms())).value();
      for (int count = 0; count < 100; ++count) {
        if (tickets) {
          with->end.send_ticket();
        } else {
          with->end.update_key();
          // Without our answer it would not ask again.
          with->end.feed({});
        }
        with->push();
        if (count % 10 == 9) with->end.write("still there");
        with->push();
      }
      CHECK(here.run(receive_all(stream.get(), 110)).value().size() == 110);
      for (int count = 0; count < 100; ++count) {
        with->end.send_ticket();
        with->push();
      }
      const auto received = here.run(receive_some(stream.get()));
      REQUIRE_FALSE(received);
      CHECK(kind_of(received.error()) == errc::tls_error);
      CHECK(has(received.error().message(), "without end"));
    }
  }

  TEST_CASE("another handshake is refused, and the conversation goes on") {
    test::test_loop here;
    const test::tls_server server(only(TLS1_2_VERSION));
    const auto with = talk(server);
    with->answer = &echo;
    auto stream = here.run(connect(&here.loop, with, terms())).value();
    with->end.renegotiate();
    with->push();
    const auto answered = here.run(ask(stream.get(), "no, but hello"));
    // The server decides whether it lives with the refusal; OpenSSL's does not.
    if (answered) {
      CHECK(*answered == "no, but hello");
    } else {
      CHECK(kind_of(answered.error()) != errc::internal);
    }
    CHECK(has(with->end.failure(), "renegotiation"));
  }

  TEST_CASE("a damaged record is an error, and the peer is told") {
    for (const int version : versions) {
      test::test_loop here;
      const test::tls_server server(only(version));
      const auto with = talk(server);
      auto stream = here.run(connect(&here.loop, with, terms())).value();
      with->end.write("good");
      with->push();
      CHECK(here.run(receive_some(stream.get())).value() == "good");
      with->end.write("precious bytes");
      with->push();
      with->on_its_way.back() = static_cast<char>(with->on_its_way.back() ^ 1);
      for (int again = 0; again < 2; ++again) {
        const auto received = here.run(receive_some(stream.get()));
        REQUIRE_FALSE(received);
        CHECK(kind_of(received.error()) == errc::tls_error);
        CHECK_FALSE(has(received.error().message(), "precious"));
      }
      CHECK_FALSE(here.run(say(stream.get(), "hello")));
      static_cast<void>(with->end.read());
      CHECK(has(with->end.failure(), "bad record mac"));
    }
  }

  TEST_CASE("a session is resumed at the next connection") {
    for (const int version : versions) {
      test::test_loop here;
      const test::tls_server server(only(version));
      const auto by = terms();
      for (int number = 0; number < 4; ++number) {
        const auto with = talk(server);
        with->answer = &echo;
        auto stream = here.run(connect(&here.loop, with, by)).value();
        CHECK(here.run(ask(stream.get(), "hello")).value() == "hello");
        CHECK(with->end.resumed() == (number > 0));
      }
      // Under another name nothing is known yet, and other terms share nothing.
      const auto others = talk(server);
      CHECK(here.run(connect(&here.loop, others, terms())));
      CHECK_FALSE(others->end.resumed());
    }
  }

  TEST_CASE("tickets of 1.3 are used once each") {
    test::test_loop here;
    auto options = only(TLS1_3_VERSION);
    const test::tls_server two_tickets(options);
    const auto by = terms();
    const auto first = talk(two_tickets);
    first->answer = &echo;
    auto stream = here.run(connect(&here.loop, first, by)).value();
    CHECK(here.run(ask(stream.get(), "hello")).value() == "hello");
    // These take a ticket and never read those that they are given.
    for (const bool resumed : {true, true, false}) {
      const auto with = talk(two_tickets);
      auto next = here.run(connect(&here.loop, with, by)).value();
      CHECK(with->end.resumed() == resumed);
    }
  }

  TEST_CASE("sessions of one host are not shown to another") {
    test::test_loop here;
    const test::tls_server server(
        {.self = trusted().issue({.names = {"DNS:one.example", "DNS:two.example"}}),
         .client_authority = {}});
    const auto by = terms();
    for (const char* const host : {"one.example", "two.example"}) {
      const auto with = talk(server);
      with->answer = &echo;
      auto stream = here.run(connect(&here.loop, with, by, host)).value();
      CHECK(here.run(ask(stream.get(), "hello")).value() == "hello");
      CHECK_FALSE(with->end.resumed());
    }
  }

  TEST_CASE("an idle stream is stale by a word unasked or an end, not by tickets") {
    for (const bool tries : {true, false}) {
      test::test_loop here;
      const test::tls_server server(only(TLS1_3_VERSION));
      const auto with = talk(server);
      with->answer = &echo;
      with->tries = tries;
      auto stream = here.run(connect(&here.loop, with, terms())).value();
      // The tickets of the handshake are there, and nobody has read them.
      CHECK_FALSE(stream->stale());
      CHECK(here.run(ask(stream.get(), "hello")).value() == "hello");
      CHECK_FALSE(stream->stale());
      with->end.write("by the way");
      with->push();
      // Where the transport can only wait, nobody knows before the next receive.
      CHECK(stream->stale() == tries);
      CHECK(stream->stale() == tries);
    }
    test::test_loop here;
    const test::tls_server server(only(TLS1_2_VERSION));
    const auto with = talk(server);
    auto stream = here.run(connect(&here.loop, with, terms())).value();
    CHECK_FALSE(stream->stale());
    with->end.close_notify();
    with->push();
    CHECK(stream->stale());
  }

  TEST_CASE("a stop ends a handshake and a receive, wherever they are") {
    test::test_loop here;
    const test::tls_server server({.self = for_localhost(), .client_authority = {}});
    for (const bool tries : {true, false}) {
      std::size_t stopped = 0;
      for (std::size_t wait = 1;; ++wait) {
        const auto with = talk(server);
        with->tries = tries;
        with->piece = 150;
        std::stop_source source;
        with->on_wait = [&source, wait](std::size_t now) {
          if (now == wait) source.request_stop();
        };
        const auto secured =
            here.run(with_stop(source.get_token(), connect(&here.loop, with, terms())));
        if (secured) break;
        ++stopped;
        CHECK(secured.error().kind() == errc::cancelled);
        CHECK(with->destroyed);
        CHECK(with->waits == wait);
      }
      CHECK(stopped >= 4);
    }

    const auto with = talk(server);
    auto stream = here.run(connect(&here.loop, with, terms())).value();
    with->end.write("there");
    with->push();
    const auto received = here.run(receive_stopped(stream.get()));
    REQUIRE_FALSE(received);
    CHECK(kind_of(received.error()) == errc::cancelled);
  }

  TEST_CASE("a handshake that gets nowhere is a timeout that names the host") {
    test::test_loop here;
    const test::tls_server server({.self = for_localhost(), .client_authority = {}});
    const auto with = talk(server);
    with->silent_after = 0;
    const auto secured = here.run(connect(&here.loop, with, terms(), "localhost", 5ms));
    REQUIRE_FALSE(secured);
    CHECK(secured.error().kind() == errc::timeout);
    CHECK(has(secured.error().reason(), "'localhost'"));
    CHECK(secured.error().context().peer == "192.0.2.7:443");
  }

  TEST_CASE("without verification any certificate is taken, with one warning") {
    std::vector<std::string> lines;
    set_log_sink([&lines](log_level, std::string_view line) { lines.emplace_back(line); },
                 log_level::warning);
    test::test_loop here;
    for (int again = 0; again < 2; ++again) {
      const test::tls_server server(
          {.self = test::authority("nobody").issue({.names = {"DNS:elsewhere"}, .valid_until = 0}),
           .client_authority = {}});
      const auto with = talk(server);
      with->answer = &echo;
      auto stream = here.run(connect(&here.loop, with, terms({.verify = false}))).value();
      CHECK(here.run(ask(stream.get(), "hello")).value() == "hello");
    }
    set_log_sink({});
    REQUIRE(lines.size() == 1);
    CHECK(has(lines[0], "not verified"));
  }

  TEST_CASE("TLS runs within TLS") {
    const std::string text = test::content_of("within", 3'000'000);
    for (const std::size_t piece : {std::size_t{1'000'000}, std::size_t{1000}}) {
      for (const bool tries : {true, false}) {
        test::test_loop here;
        const test::tls_server server({.self = for_localhost(), .client_authority = {}});
        const auto outer = talk(server);
        outer->tries = tries;
        outer->piece = piece;
        test::tls_server_end inner(server);
        outer->answer = [&inner, &text](test::tls_conversation& with, const std::string& said) {
          inner.feed(said);
          if (inner.read() == "give me all of it") inner.write(text);
          with.end.write(inner.take());
        };
        auto tunnel = here.run(connect(&here.loop, outer, terms())).value();
        auto stream = here.run(secure(here.loop, std::move(tunnel), terms(), "localhost")).value();
        CHECK_FALSE(stream->stale());
        REQUIRE(here.run(say(stream.get(), "give me all of it")));
        CHECK((here.run(scatter(stream.get(), text.size())) == text));
        CHECK_FALSE(stream->stale());
        inner.close_notify();
        outer->end.write(inner.take());
        outer->push();
        CHECK(here.run(receive_some(stream.get())).value().empty());
      }
    }
  }

  TEST_CASE("a host that cannot be one is refused before anything is sent") {
    for (const std::string& host :
         {std::string(), std::string("local\0host", 10), std::string(300, 'a')}) {
      test::test_loop here;
      const test::tls_server server({.self = for_localhost(), .client_authority = {}});
      const auto with = talk(server);
      const auto secured = here.run(connect(&here.loop, with, terms(), host));
      REQUIRE_FALSE(secured);
      CHECK(secured.error().kind() == errc::tls_error);
      CHECK(with->waits == 0);
    }
  }
}
