#pragma once

#include <headrace/io/endpoint.hpp>

#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <vector>

namespace headrace::test {

[[nodiscard]] inline endpoint at(const char* address, std::uint16_t port) {
  return *endpoint::from_literal(address, port);
}

/// Whether the machine has an IPv6 loopback.
[[nodiscard]] inline bool has_ipv6() {
  const int number = ::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const auto any = at("::1", 0);
  const bool bound = number >= 0 && ::bind(number, any.data(), any.size()) == 0;
  ::close(number);
  return bound;
}

/// An address on which nobody listens: it is taken, and its owner does not listen.
class dead_address {
 public:
  explicit dead_address(const char* host = "127.0.0.1", std::uint16_t port = 0)
      : number_(::socket(at(host, 0).family(), SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const auto any = at(host, port);
    REQUIRE(::bind(number_, any.data(), any.size()) == 0);
    sockaddr_storage storage{};
    socklen_t size = sizeof storage;
    REQUIRE(::getsockname(number_, reinterpret_cast<sockaddr*>(&storage), &size) == 0);
    address = endpoint(reinterpret_cast<sockaddr*>(&storage), size);
  }
  ~dead_address() { ::close(number_); }
  dead_address(const dead_address&) = delete;
  dead_address& operator=(const dead_address&) = delete;
  endpoint address;

 protected:
  int number_;
};

/// An address that answers nothing at all: a listener whose queue is full, so that the kernel drops
/// every SYN.
class black_hole : public dead_address {
 public:
  explicit black_hole(const char* host = "127.0.0.1", std::uint16_t port = 0)
      : dead_address(host, port) {
    REQUIRE(::listen(number_, 0) == 0);
    for (int& filler : fillers_) {
      filler = ::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
      const int begun = ::connect(filler, address.data(), address.size());
      REQUIRE((begun == 0 || errno == EINPROGRESS));
    }
  }
  ~black_hole() {
    for (const int filler : fillers_) ::close(filler);
  }

 private:
  std::array<int, 4> fillers_{};
};

}  // namespace headrace::test
