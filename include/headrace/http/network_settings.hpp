#pragma once

#include <headrace/io/tls_options.hpp>

#include <compare>
#include <string>

namespace headrace {

/// Through whom requests go, as curl reads its variables.
///
/// A URL is `[http[s]://][user:password@]host[:port]`, percent-encoded; the port is 1080 where
/// there is none, 443 with `https`. It is read when a connection is made: one that is none, or a
/// SOCKS proxy, is an error of the requests that would go through it, and of no others.
struct proxy_settings {
  std::string http;    ///< URL of the proxy for `http` origins; empty: none. May hold a password.
  std::string https;   ///< The same for `https` origins, by CONNECT.
  std::string bypass;  ///< `NO_PROXY`: names, domains, addresses, networks, by commas; or `*`.
  std::string http_named_by = "http_proxy";    ///< Where `http` was found: for messages, which say
  std::string https_named_by = "https_proxy";  ///< what to change.

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
