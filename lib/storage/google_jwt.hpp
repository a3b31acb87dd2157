#pragma once

#include <headrace/base/clock.hpp>
#include <headrace/base/result.hpp>

#include <chrono>
#include <string>
#include <string_view>

namespace headrace {

/// How long a token lives that a service account signs itself: the longest that Google takes.
inline constexpr std::chrono::seconds google_jwt_lifetime{3600};

/// The token that a service account signs itself and sends as its bearer: RS256 over the claims
/// iss, sub, scope, iat and exp. `private_key` is PEM and without a passphrase. Errors are
/// `invalid_request`, completed by the caller with whose key it is: no PEM, no RSA key, one of a
/// size that nobody uses.
///
/// Threads: any. Takes a millisecond or more: not on a loop's thread.
[[nodiscard]] result<std::string> sign_google_jwt(const std::string& email,
                                                  const std::string& key_id,
                                                  const std::string& private_key,
                                                  std::string_view scope, system_time now);

/// Base64 without padding, in the alphabet of URLs (RFC 4648, 5).
[[nodiscard]] std::string base64url(std::string_view bytes);

}  // namespace headrace
