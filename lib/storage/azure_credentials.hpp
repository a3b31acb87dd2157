#pragma once

#include "storage/azure_environment.hpp"
#include "storage/refreshed.hpp"

#include <headrace/base/clock.hpp>
#include <headrace/http/network_settings.hpp>

#include <memory>
#include <optional>
#include <string>

namespace headrace {

/// A bearer token for Azure Storage. Empty where a machine has no identity: requests are anonymous.
struct entra_token {
  std::string value;  ///< A secret.
  std::optional<system_time> expires;

  friend bool operator==(const entra_token&, const entra_token&) = default;
};

/// Asks Microsoft Entra, or the service that speaks for it, for tokens as `settings` say. Entra is
/// reached by `network`; identities' own services are beside the program and are asked directly. A
/// machine whose metadata service does not answer within a second, is not Azure's or knows no
/// identity gives the empty token, unless `AZURE_CLIENT_ID` names one.
///
/// Errors: `access_denied` where the identity is refused and `invalid_request` where the token file
/// cannot be used, naming the variables; `protocol_error` for an answer that holds no token; those
/// of `ask_service`. None holds a secret.
[[nodiscard]] std::shared_ptr<expiring_source<entra_token>> make_entra_source(
    entra_settings settings, std::shared_ptr<const network_settings> network);

}  // namespace headrace
