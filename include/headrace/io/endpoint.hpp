#pragma once

#include <headrace/base/export.hpp>

#include <sys/socket.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace headrace {

/// An IPv4 or IPv6 address and a port.
class HEADRACE_API endpoint {
 public:
  endpoint() = default;
  endpoint(const sockaddr* address, socklen_t size) noexcept;

  /// From a literal address (`127.0.0.1`, `::1`, `fe80::1%eth0` without the zone is not one); empty
  /// where `host` is a name.
  [[nodiscard]] static std::optional<endpoint> from_literal(std::string_view host,
                                                            std::uint16_t port);

  [[nodiscard]] int family() const noexcept { return storage_.ss_family; }
  [[nodiscard]] std::uint16_t port() const noexcept;
  /// The same address with another port.
  [[nodiscard]] endpoint with_port(std::uint16_t port) const noexcept;
  [[nodiscard]] const sockaddr* data() const noexcept {
    return reinterpret_cast<const sockaddr*>(&storage_);
  }
  [[nodiscard]] socklen_t size() const noexcept { return size_; }

  /// `127.0.0.1:80`, `[::1]:443`.
  [[nodiscard]] std::string to_string() const;

  friend HEADRACE_API bool operator==(const endpoint& left, const endpoint& right) noexcept;

 private:
  sockaddr_storage storage_{};
  socklen_t size_ = 0;
};

}  // namespace headrace
