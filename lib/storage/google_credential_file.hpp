#pragma once

#include "storage/service_place.hpp"

#include <headrace/base/result.hpp>
#include <headrace/http/http_request.hpp>

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace headrace {

/// A service account and its key: signs its tokens itself.
struct google_service_account {
  std::string email;
  std::string key_id;
  std::string private_key;  ///< PEM. A secret.
};

/// A person, who has logged in with gcloud.
struct google_user {
  std::string client_id;
  std::string client_secret;  ///< A secret.
  std::string refresh_token;  ///< A secret.
  service_place token_service;
  std::string account;  ///< An e-mail address; may be empty.
};

/// Somebody whom another cloud or a cluster vouches for.
struct google_external_account {
  std::string audience;
  std::string subject_token_type;
  service_place token_service;
  std::string client_id;      ///< With `client_secret`, or both empty.
  std::string client_secret;  ///< A secret.
  std::string workforce_project;

  std::string subject_file;                    ///< Holds the subject token; or
  std::optional<service_place> subject_place;  ///< gives it when asked,
  http_fields subject_fields;                  ///< with these fields. May hold secrets.
  std::string subject_member;  ///< Where the subject token stands in JSON; empty: it is the text.
};

/// The service account whose tokens the holder asks for.
struct google_impersonation {
  service_place place;
  std::string email;  ///< May be empty.
  std::vector<std::string> delegates;
  std::chrono::seconds lifetime{3600};
};

/// What a credential file of Google's tools holds.
struct google_credential_file {
  std::variant<google_service_account, google_user, google_external_account> holder;
  std::optional<google_impersonation> impersonation;
  std::string project;  ///< The file's `quota_project_id`, or else its `project_id`; may be empty.
};

/// Reads a credential file: `service_account`, `authorized_user`, `external_account` (subject
/// tokens from files and URLs), and `impersonated_service_account` over the first two. `where`
/// names the file for messages. Errors are `invalid_request`, or `unsupported` for kinds that
/// headrace does not know; they name the file and what is wrong with it, and repeat nothing that
/// may be secret.
[[nodiscard]] result<google_credential_file> parse_google_credential_file(std::string_view text,
                                                                          const std::string& where);

}  // namespace headrace
