#pragma once

#include <headrace/base/export.hpp>
#include <headrace/base/result.hpp>
#include <headrace/base/uri.hpp>

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

namespace headrace {

/// Whom an HTTP connection talks to: what the keep-alive pool keys on, and what an `Authorization`
/// field is meant for.
struct HEADRACE_API http_origin {
  std::string scheme = "http";  ///< `http` or `https`.
  std::string host;             ///< Lower case; an IPv6 address without its brackets.
  std::uint16_t port = 80;

  /// The origin of an `http` or `https` URL, with the default port where it names none.
  /// `unsupported` for other schemes, `invalid_request` where there is no host or the port is none.
  [[nodiscard]] static result<http_origin> of(const uri& location);

  [[nodiscard]] bool is_secure() const noexcept { return scheme == "https"; }

  /// The value of the `Host` field: the port only where it is not the scheme's own, brackets around
  /// IPv6.
  [[nodiscard]] std::string host_field() const;

  /// `https://host:port` with the port always there: for messages and maps.
  [[nodiscard]] std::string to_string() const;

  friend bool operator==(const http_origin&, const http_origin&) = default;
  friend auto operator<=>(const http_origin&, const http_origin&) = default;
};

/// 80 for `http`, 443 for `https`, 0 for everything else.
[[nodiscard]] HEADRACE_API std::uint16_t default_port(std::string_view scheme) noexcept;

}  // namespace headrace
