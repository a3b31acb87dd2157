#include "io/tls_sessions.hpp"

#include <doctest/doctest.h>
#include <openssl/ssl.h>

#include <ctime>
#include <string>

using namespace headrace;

namespace {

/// As OpenSSL would resume it: with a ticket of `size` bytes.
detail::session_pointer session(int version, std::size_t size = 100) {
  // The wire form of a session is the one way to make one with a ticket.
  const auto field = [](unsigned char tag, std::string content) {
    std::string whole(1, static_cast<char>(tag));
    if (content.size() < 128) {
      whole += static_cast<char>(content.size());
    } else {
      whole += '\x83';
      for (const int shift : {16, 8, 0})
        whole += static_cast<char>((content.size() >> shift) & 0xff);
    }
    return whole + content;
  };
  const auto number = [&field](long value) {
    std::string bytes;
    for (int shift = 32; shift >= 0; shift -= 8)
      bytes += static_cast<char>((value >> shift) & 0xff);
    while (bytes.size() > 1 && bytes[0] == 0 && (bytes[1] & 0x80) == 0) bytes.erase(0, 1);
    return field(0x02, bytes);
  };
  const bool newest = version == TLS1_3_VERSION;
  const std::string cipher = newest ? std::string("\x13\x01", 2) : std::string("\xc0\x2b", 2);
  std::string content = number(1) + number(version) + field(0x04, cipher) +
                        field(0x04, std::string(32, 's')) + field(0x04, std::string(32, 'm'));
  content += field(0xa1, number(std::time(nullptr))) + field(0xa2, number(300)) +
             field(0xa4, field(0x04, "")) + field(0xa9, number(300)) +
             field(0xaa, field(0x04, std::string(size, 't')));
  const std::string wire = field(0x30, content);
  const auto* at = reinterpret_cast<const unsigned char*>(wire.data());
  detail::session_pointer made(d2i_SSL_SESSION(nullptr, &at, static_cast<long>(wire.size())));
  REQUIRE(made != nullptr);
  REQUIRE(SSL_SESSION_is_resumable(made.get()) == 1);
  return made;
}

}  // namespace

TEST_SUITE("unit") {
  TEST_CASE("a session of 1.3 is given away once, one of 1.2 again and again") {
    detail::tls_sessions kept;
    CHECK(kept.take("a") == nullptr);
    kept.put("a", session(TLS1_3_VERSION));
    CHECK(kept.take("b") == nullptr);
    CHECK(kept.take("a") != nullptr);
    CHECK(kept.take("a") == nullptr);
    kept.put("a", session(TLS1_2_VERSION));
    CHECK(kept.take("a") != nullptr);
    CHECK(kept.take("a") != nullptr);
  }

  TEST_CASE("a session that is over is not given") {
    detail::tls_sessions kept;
    auto old = session(TLS1_3_VERSION);
    SSL_SESSION_set_time(old.get(), SSL_SESSION_get_time(old.get()) - 301);
    kept.put("a", std::move(old));
    CHECK(kept.take("a") == nullptr);
    auto future = session(TLS1_3_VERSION);
    SSL_SESSION_set_time(future.get(), SSL_SESSION_get_time(future.get()) + 301);
    kept.put("a", std::move(future));
    CHECK(kept.take("a") == nullptr);
  }

  TEST_CASE("few sessions of a host, few hosts and small tickets are kept") {
    detail::tls_sessions kept;
    for (std::size_t count = 0; count < 3 * detail::tls_sessions::sessions_of_a_host; ++count)
      kept.put("a", session(TLS1_3_VERSION));
    std::size_t given = 0;
    while (kept.take("a") != nullptr) ++given;
    CHECK(given == detail::tls_sessions::sessions_of_a_host);

    kept.put("a", session(TLS1_3_VERSION, detail::tls_sessions::largest_ticket + 1));
    CHECK(kept.take("a") == nullptr);

    for (std::size_t number = 0; number <= detail::tls_sessions::most_hosts; ++number)
      kept.put(std::to_string(number), session(TLS1_3_VERSION));
    CHECK(kept.take("0") == nullptr);
    CHECK(kept.take("1") != nullptr);
    CHECK(kept.take(std::to_string(detail::tls_sessions::most_hosts)) != nullptr);
  }
}
