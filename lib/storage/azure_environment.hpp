#pragma once

#include "storage/azure_address.hpp"
#include "storage/sas_token.hpp"
#include "storage/variables.hpp"

#include <headrace/base/result.hpp>
#include <headrace/http/http_origin.hpp>
#include <headrace/storage/storage_options.hpp>

#include <string>
#include <variant>

namespace headrace {

/// A place on a server of tokens.
struct token_service {
  http_origin origin;
  std::string path;
};

/// No credentials. `wanted`: somebody asked for that.
struct azure_anonymous {
  bool wanted = false;
};

/// A token that somebody else refreshes.
struct azure_bearer {
  std::string token;  ///< A secret.
};

/// A key of the account, decoded: a secret.
struct azure_account_key {
  std::string key;
};

/// Whose tokens Microsoft Entra is to give, and how it is asked for them.
struct entra_settings {
  enum class source {
    client_secret,      ///< A secret of an application.
    workload_identity,  ///< A token in a file, which the cluster renews.
    app_service,        ///< The service that App Service and Container Apps run beside a program.
    machine,            ///< The metadata service of a virtual machine. May be absent.
  };

  source from = source::machine;
  token_service service;        ///< Of Entra, or of the identity's own service.
  std::string tenant;           ///< For `client_secret` and `workload_identity`.
  std::string client_id;        ///< Empty: the machine's own identity.
  std::string client_secret;    ///< A secret.
  std::string token_file;       ///< For `workload_identity`.
  std::string identity_header;  ///< For `app_service`. A secret.
};

/// What the options and the environment say about Azure, options first. An empty variable counts
/// as not set.
struct azure_settings {
  blob_endpoint endpoint;  ///< Its account may be empty where no signature needs it.
  std::variant<azure_anonymous, azure_bearer, azure_account_key, sas_token, entra_settings>
      credential;
  std::string source;  ///< Where the credential was found, for messages and reports.
};

/// Reads the options `token`, `account`, `endpoint` and `anonymous`;
/// `AZURE_STORAGE_CONNECTION_STRING`; `AZURE_STORAGE_ACCOUNT_NAME` or `AZURE_STORAGE_ACCOUNT`, with
/// `AZURE_STORAGE_ACCOUNT_KEY` or `AZURE_STORAGE_KEY`, or `AZURE_STORAGE_SAS_TOKEN`;
/// `AZURE_TENANT_ID`, `AZURE_CLIENT_ID`, `AZURE_CLIENT_SECRET`, `AZURE_FEDERATED_TOKEN_FILE`,
/// `AZURE_AUTHORITY_HOST`; `IDENTITY_ENDPOINT` and `IDENTITY_HEADER`;
/// `AZURE_POD_IDENTITY_AUTHORITY_HOST`. Asks and reads nothing else. Errors are `invalid_request`
/// and name the variable, never its value: half of what belongs together, a key that is no base64,
/// another account than the URI's, a token that would be sent without TLS.
[[nodiscard]] result<azure_settings> read_azure_settings(const azure_location& location,
                                                         const storage_options& options,
                                                         const variable_lookup& variable);

}  // namespace headrace
