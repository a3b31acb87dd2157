#pragma once

#include <headrace/io/tls_options.hpp>

#include <compare>
#include <string>

namespace headrace {

/// Through whom requests go, as curl reads its variables.
struct proxy_settings {
  std::string http;    ///< URL of the proxy for `http` origins; empty: none. May hold a password.
  std::string https;   ///< The same for `https` origins, by CONNECT.
  std::string bypass;  ///< `NO_PROXY`: names, domains, addresses, networks, `*`; by commas.

  friend bool operator==(const proxy_settings&, const proxy_settings&) = default;
  friend auto operator<=>(const proxy_settings&, const proxy_settings&) = default;
};

/// How connections are made: connections with equal settings are shared.
struct network_settings {
  tls_options tls;
  proxy_settings proxy;

  friend bool operator==(const network_settings&, const network_settings&) = default;
  friend auto operator<=>(const network_settings&, const network_settings&) = default;
};

}  // namespace headrace
