#pragma once

#include <headrace/base/export.hpp>
#include <headrace/base/result.hpp>

#include <string>
#include <utility>
#include <vector>

namespace headrace {

/// Names and values of header fields, in the order in which they are sent.
using http_fields = std::vector<std::pair<std::string, std::string>>;

/// A request. Everything is sent as it stands here: what needs encoding is encoded already.
///
/// `Host`, `Accept-Encoding: identity`, `User-Agent`, `Connection` and `Content-Length` are written
/// by `serialize`; a request that holds one of them among its fields, `User-Agent` excepted, is
/// `invalid_request`. (Sign them: they are what they are.)
///
///     http_request request;
///     request.target = "/models/model.safetensors";
///     request.host = origin.host_field();
///     request.fields.emplace_back("Range", "bytes=0-65535");
struct HEADRACE_API http_request {
  std::string method = "GET";
  std::string target =
      "/";           ///< Path and query, percent-encoded. (To a proxy: what a proxy expects.)
  std::string host;  ///< The value of `Host`: `http_origin::host_field()`.
  http_fields fields;
  std::string body;  ///< Small ones: a token request, a form. Sent with its length; empty where
                     ///< there is none.
  bool keep_alive = true;  ///< False sends `Connection: close`.

  /// Appends the request as it goes over the wire to `into`.
  ///
  /// `invalid_request`, with `into` untouched, where a part holds what could end it early or begin
  /// another one: CR, LF, NUL or another control character anywhere, a space in method or target, a
  /// separator in a field's name, an empty method, target, host or name. The message names the part
  /// and never shows a value.
  [[nodiscard]] result<void> serialize(std::string& into) const;
};

}  // namespace headrace
