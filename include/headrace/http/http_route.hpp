#pragma once

#include <headrace/http/http_origin.hpp>
#include <headrace/http/network_settings.hpp>

#include <compare>
#include <memory>
#include <utility>

namespace headrace {

/// Whom to talk to, and how to get there: what the keep-alive pool keys on.
struct http_route {
  http_origin origin;
  std::shared_ptr<const network_settings> network;  ///< Null: no proxy, the system's authorities.

  http_route() = default;
  http_route(http_origin to, std::shared_ptr<const network_settings> by = nullptr)  // NOLINT
      : origin(std::move(to)), network(std::move(by)) {}
  http_route(std::string scheme, std::string host, std::uint16_t port)
      : origin{std::move(scheme), std::move(host), port} {}

  [[nodiscard]] const network_settings& settings() const noexcept {
    static const network_settings none;
    return network ? *network : none;
  }

  /// By value: equal settings are the same way.
  friend bool operator==(const http_route& a, const http_route& b) noexcept {
    return a.origin == b.origin && (a.network == b.network || a.settings() == b.settings());
  }
  friend std::strong_ordering operator<=>(const http_route& a, const http_route& b) noexcept {
    if (const auto order = a.origin <=> b.origin; order != 0) return order;
    if (a.network == b.network) return std::strong_ordering::equal;
    return a.settings() <=> b.settings();
  }
};

}  // namespace headrace
