#pragma once

#include <headrace/base/result.hpp>
#include <headrace/http/http_origin.hpp>

#include <string>
#include <string_view>

namespace headrace {

/// A place on a server, as an endpoint's URL or that of a token service names it.
struct service_place {
  http_origin origin;
  std::string path;   ///< Percent-encoded; empty, or with a `/` in front and none at its end.
  std::string query;  ///< Without `?`. May hold a secret: in no message.

  /// What a request asks for there.
  [[nodiscard]] std::string target() const {
    return (path.empty() ? "/" : path) + (query.empty() ? "" : "?" + query);
  }
};

/// Reads `http(s)://host[:port][/path]`. `what` is what the URL is, for messages:
/// "STORAGE_EMULATOR_HOST". Errors are `invalid_request` and repeat nothing of the URL: it may hold
/// a password.
[[nodiscard]] result<service_place> parse_service_place(std::string_view url,
                                                        const std::string& what);

/// Whether nobody but this machine can hear what is said to `origin`.
[[nodiscard]] bool is_loopback(const http_origin& origin) noexcept;

/// Whether a secret may be sent to `origin`: by https, or to this machine.
[[nodiscard]] inline bool keeps_secrets(const http_origin& origin) noexcept {
  return origin.is_secure() || is_loopback(origin);
}

/// The same as a check of a store's endpoint, before a token goes there: `invalid_request`.
[[nodiscard]] result<void> check_keeps_secrets(const http_origin& endpoint);

}  // namespace headrace
