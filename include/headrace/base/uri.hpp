#pragma once

#include <headrace/base/export.hpp>
#include <headrace/base/result.hpp>

#include <string>
#include <string_view>

namespace headrace {

/// A place in a store, as the user writes it.
///
/// The scheme is lower case; a text without `://` is a local path and has the scheme `file`. For
/// `http` and `https` the text is an RFC 3986 URL, checked by Boost.URL, and `path` stays
/// percent-encoded with its query in `query`. For every other store `path` is the key itself, taken
/// literally, as the clouds' own tools do: `s3://bucket/a b%20` names the key `a b%20`.
struct HEADRACE_API uri {
  std::string scheme;     ///< `s3`, `http`, `file`, …
  std::string authority;  ///< bucket, container, or `host[:port]`; empty for `file`. User
                          ///< information is kept apart.
  std::string user_info;  ///< `user:password` of a URL; a secret: in no message.
  std::string path;       ///< without the leading `/` for keys; with it for URLs and files.
  std::string query;      ///< of a URL, without `?`; may hold a signature: in no message.

  /// Parses `text`. Errors are `invalid_request` (a missing bucket, a URL that is none) and say
  /// what was expected. Unknown schemes parse: the storage room says `unsupported`, since it knows
  /// the stores.
  [[nodiscard]] static result<uri> parse(std::string_view text);

  /// The URI for messages: without user information and query.
  [[nodiscard]] std::string display() const;

  friend bool operator==(const uri&, const uri&) = default;
};

}  // namespace headrace
