#pragma once

#include "storage/google_environment.hpp"
#include "storage/refreshed.hpp"

#include <headrace/base/clock.hpp>
#include <headrace/http/network_settings.hpp>

#include <memory>
#include <optional>
#include <string>

namespace headrace {

/// What requests to Google Cloud Storage carry, and where it was found.
struct google_token {
  std::string bearer;      ///< A secret. Empty: requests are anonymous.
  std::string source;      ///< As `credential_report::source`.
  std::string identity;    ///< An e-mail address, an audience; may be empty.
  std::string project;     ///< The project that the credentials belong to; may be empty.
  bool renewable = false;  ///< Another one can be had where this one is refused.
  std::optional<system_time> expires;

  friend bool operator==(const google_token&, const google_token&) = default;
};

/// Finds credentials as Google's own tools do: the token of `settings`, the file that
/// `GOOGLE_APPLICATION_CREDENTIALS` names, the well-known file, the metadata server, none. Services
/// are reached by `network`, the metadata server directly: it is beside the program. A machine
/// whose metadata server does not answer within a second, is not Google's or has no service account
/// gives the empty token, unless `GCE_METADATA_HOST` names the server.
///
/// Errors: `invalid_request` and `unsupported` for files that cannot be used, naming the variable
/// and the file; `access_denied` where a service refuses them, with what to do; `protocol_error`
/// for an answer that holds no token; those of `ask_service`. None holds a secret.
///
/// `time` outlives the source.
[[nodiscard]] std::shared_ptr<expiring_source<google_token>> make_google_token_source(
    google_settings settings, std::shared_ptr<const network_settings> network,
    const clock& time = real_clock());

}  // namespace headrace
