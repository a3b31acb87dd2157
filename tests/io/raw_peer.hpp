#pragma once

#include <headrace/io/endpoint.hpp>

#include <doctest/doctest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstddef>
#include <filesystem>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>

namespace headrace::test {

/// The far end of a connection, by blocking calls on the test's own thread.
class raw_peer {
 public:
  raw_peer() = default;
  explicit raw_peer(int descriptor) noexcept : descriptor_(descriptor) {
    const int one = 1;
    static_cast<void>(::setsockopt(descriptor_, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one));
  }
  raw_peer(raw_peer&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  raw_peer& operator=(raw_peer&& other) noexcept {
    if (this != &other) {
      close();
      descriptor_ = std::exchange(other.descriptor_, -1);
    }
    return *this;
  }
  ~raw_peer() { close(); }

  void send(std::string_view bytes, int flags = 0) const {
    while (!bytes.empty()) {
      const auto sent = ::send(descriptor_, bytes.data(), bytes.size(), MSG_NOSIGNAL | flags);
      REQUIRE(sent > 0);
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
  }
  /// Exactly `size` bytes, fewer at the end of the stream.
  [[nodiscard]] std::string receive(std::size_t size) const {
    std::string bytes(size, '\0');
    std::size_t have = 0;
    while (have < size) {
      const auto received = ::recv(descriptor_, bytes.data() + have, size - have, 0);
      if (received <= 0) break;
      have += static_cast<std::size_t>(received);
    }
    bytes.resize(have);
    return bytes;
  }
  /// Whether the far end has taken in all that was sent.
  [[nodiscard]] bool acknowledged() const {
    int left = 0;
    return ::ioctl(descriptor_, TIOCOUTQ, &left) == 0 && left == 0;
  }
  void shutdown_send() const { static_cast<void>(::shutdown(descriptor_, SHUT_WR)); }
  void reset() {
    const linger abort{.l_onoff = 1, .l_linger = 0};
    static_cast<void>(::setsockopt(descriptor_, SOL_SOCKET, SO_LINGER, &abort, sizeof abort));
    close();
  }
  void close() {
    if (descriptor_ >= 0) ::close(std::exchange(descriptor_, -1));
  }
  [[nodiscard]] int native() const noexcept { return descriptor_; }

 private:
  int descriptor_ = -1;
};

[[nodiscard]] inline endpoint loopback(std::uint16_t port = 0) {
  return *endpoint::from_literal("127.0.0.1", port);
}

class raw_listener {
 public:
  explicit raw_listener(int backlog = 128)
      : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const endpoint any = loopback();
    REQUIRE(::bind(socket_.native(), any.data(), any.size()) == 0);
    REQUIRE(::listen(socket_.native(), backlog) == 0);
  }
  [[nodiscard]] endpoint local() const {
    sockaddr_storage storage{};
    socklen_t size = sizeof storage;
    REQUIRE(::getsockname(socket_.native(), reinterpret_cast<sockaddr*>(&storage), &size) == 0);
    return {reinterpret_cast<const sockaddr*>(&storage), size};
  }
  [[nodiscard]] raw_peer accept() const {
    const int accepted = ::accept4(socket_.native(), nullptr, nullptr, SOCK_CLOEXEC);
    REQUIRE(accepted >= 0);
    return raw_peer(accepted);
  }
  [[nodiscard]] int native() const noexcept { return socket_.native(); }

 private:
  raw_peer socket_;
};

/// How many descriptors the process has open.
[[nodiscard]] inline std::ptrdiff_t open_descriptors() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"),
                       std::filesystem::directory_iterator());
}

}  // namespace headrace::test
