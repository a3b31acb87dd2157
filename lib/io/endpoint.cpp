#include <headrace/io/endpoint.hpp>

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <cstring>

namespace headrace {

endpoint::endpoint(const sockaddr* address, socklen_t size) noexcept
    : size_(std::min<socklen_t>(size, sizeof storage_)) {
  std::memcpy(&storage_, address, size_);
}

std::optional<endpoint> endpoint::from_literal(std::string_view host, std::uint16_t port) {
  if (host.size() > 2 && host.front() == '[' && host.back() == ']')
    host = host.substr(1, host.size() - 2);
  if (host.find('\0') != std::string_view::npos) return std::nullopt;  // inet_pton would stop there
  const std::string text(host);
  sockaddr_in four{};
  four.sin_family = AF_INET;
  four.sin_port = htons(port);
  if (::inet_pton(AF_INET, text.c_str(), &four.sin_addr) == 1) {
    return endpoint(reinterpret_cast<const sockaddr*>(&four), sizeof four);
  }
  sockaddr_in6 six{};
  six.sin6_family = AF_INET6;
  six.sin6_port = htons(port);
  if (::inet_pton(AF_INET6, text.c_str(), &six.sin6_addr) == 1) {
    return endpoint(reinterpret_cast<const sockaddr*>(&six), sizeof six);
  }
  return std::nullopt;
}

std::uint16_t endpoint::port() const noexcept {
  if (family() == AF_INET) return ntohs(reinterpret_cast<const sockaddr_in*>(&storage_)->sin_port);
  if (family() == AF_INET6)
    return ntohs(reinterpret_cast<const sockaddr_in6*>(&storage_)->sin6_port);
  return 0;
}

endpoint endpoint::with_port(std::uint16_t port) const noexcept {
  endpoint there = *this;
  if (family() == AF_INET) reinterpret_cast<sockaddr_in*>(&there.storage_)->sin_port = htons(port);
  if (family() == AF_INET6)
    reinterpret_cast<sockaddr_in6*>(&there.storage_)->sin6_port = htons(port);
  return there;
}

std::string endpoint::to_string() const {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (family() == AF_INET) {
    ::inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(&storage_)->sin_addr, text.data(),
                text.size());
    return std::string(text.data()) + ":" + std::to_string(port());
  }
  if (family() == AF_INET6) {
    ::inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6*>(&storage_)->sin6_addr, text.data(),
                text.size());
    return "[" + std::string(text.data()) + "]:" + std::to_string(port());
  }
  return "?";
}

bool operator==(const endpoint& left, const endpoint& right) noexcept {
  return left.size_ == right.size_ && std::memcmp(&left.storage_, &right.storage_, left.size_) == 0;
}

}  // namespace headrace
