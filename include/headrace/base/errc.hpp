#pragma once

#include <headrace/base/export.hpp>

#include <string_view>
#include <system_error>

namespace headrace {

/// What kind of thing went wrong; the code of every `headrace::error`.
enum class errc {
  not_found = 1,    ///< No such object, bucket, file or prefix.
  access_denied,    ///< The store or the file system refused.
  invalid_request,  ///< The caller asked for something that cannot be: a bad option, URI or tensor
                    ///< name.
  throttled,        ///< The store asks for a longer pause than the limits allow.
  timeout,          ///< A stall limit, a connect limit or a deadline passed.
  object_changed,   ///< The object is no longer the version that was pinned by the first answer.
  truncated,        ///< A body was cut short, after all retries.
  protocol_error,   ///< The peer broke HTTP.
  tls_error,        ///< Certificate or handshake.
  connect_error,    ///< Name resolution or connecting failed, or the connection broke.
  unavailable,      ///< The store answered with a server error, after all retries.
  invalid_safetensors,  ///< The file or the index is not what the format demands.
  unsupported,          ///< Right, but not something that this build or machine can do.
  cancelled,            ///< The stop token of the environment was triggered.
  out_of_memory,        ///< Memory for a tensor could not be had.
  internal,             ///< A mistake of headrace's own.
};

/// The name of the kind as it is written in messages: `not_found`, `object_changed`, …
[[nodiscard]] HEADRACE_API std::string_view to_string(errc kind) noexcept;

/// The category of `errc`; its name is "headrace".
[[nodiscard]] HEADRACE_API const std::error_category& error_category() noexcept;

[[nodiscard]] inline std::error_code make_error_code(errc kind) noexcept {
  return {static_cast<int>(kind), error_category()};
}

}  // namespace headrace

/// @cond
template <>
struct std::is_error_code_enum<headrace::errc> : std::true_type {};
/// @endcond
