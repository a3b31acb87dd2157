#pragma once

#include <headrace/base/result.hpp>
#include <headrace/coro/task.hpp>
#include <headrace/http/http_origin.hpp>
#include <headrace/http/http_response_head.hpp>
#include <headrace/http/http_route.hpp>
#include <headrace/io/byte_stream.hpp>

#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace headrace::detail {

/// A proxy, as its URL describes it.
struct http_proxy {
  http_origin at;             ///< Where it listens; `https` where it speaks TLS.
  std::string authorization;  ///< The value of `Proxy-Authorization`; a secret. Empty: none.
  std::string named_by;       ///< The variable that its URL came from.

  /// From `[http[s]://][user:password@]host[:port]`, as curl reads it. Errors name the variable
  /// and never show the value: `unsupported` for SOCKS, `invalid_request` for what is no URL.
  [[nodiscard]] static result<http_proxy> parse(std::string_view url, std::string named_by);

  /// `the proxy http://host:port (https_proxy)`.
  [[nodiscard]] std::string describe() const;
};

/// Whether `NO_PROXY` names `host` (lower case, IPv6 without brackets), as curl reads it:
/// `example.com` and `.example.com` name the domain and all below it, addresses name themselves,
/// `10.0.0.0/8` and `fd00::/8` the addresses in them, `*` alone everything. Commas and blanks
/// separate. Names are not looked up, and an entry with a port names nothing.
[[nodiscard]] bool bypasses_proxy(std::string_view no_proxy, std::string_view host);

/// The proxy that `route` leads through; nothing where it leads through none.
[[nodiscard]] result<std::optional<http_proxy>> proxy_for(const http_route& route);

/// What a proxy's 407 means, and what to do about it.
[[nodiscard]] error proxy_denial(const http_proxy& proxy, const http_response_head& head);

/// Asks `proxy`, on the other side of `transport`, for a connection to `origin` (CONNECT), and
/// gives the stream on which that begins.
///
/// Errors: `access_denied` for 407 (and 401); `connect_error` with the status for every other
/// refusal, and without one where the proxy breaks off; `protocol_error`, also for bytes that
/// follow the answer before anything was said to the origin; `cancelled`. None holds what was sent.
/// Threads: the loop's own.
[[nodiscard]] task<result<std::unique_ptr<byte_stream>>> open_tunnel(
    std::unique_ptr<byte_stream> transport, http_proxy proxy, http_origin origin);

}  // namespace headrace::detail
