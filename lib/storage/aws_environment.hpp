#pragma once

#include "storage/aws_keys.hpp"
#include "storage/aws_profiles.hpp"
#include "storage/variables.hpp"

#include <headrace/base/result.hpp>
#include <headrace/storage/aws_credentials.hpp>
#include <headrace/storage/storage_options.hpp>

#include <optional>
#include <string>

namespace headrace {

/// What the options and the environment say about S3, options first. An empty variable counts as
/// not set.
struct aws_settings {
  /// Keys to sign with; none: the later links of the chain are asked, see `aws_key_chain`.
  std::optional<aws_credentials> credentials;
  std::string credentials_by;  ///< For people: where these keys are from.
  bool anonymous = false;      ///< Somebody asked for that: no source of keys is to be tried.
  std::string anonymous_by;    ///< "AWS_SKIP_SIGNATURE"
  aws_profile_choice profile;
  std::string endpoint;  ///< Empty: the profile's, AWS.
  bool ignores_profile_endpoint = false;
  std::string region;  ///< Empty: the profile's, the bucket's own.
  std::optional<bool> path_style;
};

/// Reads `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`, `AWS_ENDPOINT_URL_S3`
/// or `AWS_ENDPOINT_URL`, `AWS_IGNORE_CONFIGURED_ENDPOINT_URLS`, `AWS_REGION` or
/// `AWS_DEFAULT_REGION`, `AWS_PROFILE` or `AWS_DEFAULT_PROFILE`, `AWS_SKIP_SIGNATURE` or
/// `AWS_NO_SIGN_REQUEST` or `NO_SIGN_REQUEST`. The option `profile` beats the keys in variables; a
/// profile that a variable names does not. Errors are `invalid_request` and name the variable,
/// never its value: one key without the other, keys with spaces or control characters, a switch
/// that is neither yes nor no.
[[nodiscard]] result<aws_settings> read_aws_settings(const storage_options& options,
                                                     const variable_lookup& variable);

/// The keys in `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY` and `AWS_SESSION_TOKEN`. Errors as
/// above.
[[nodiscard]] found_aws_keys keys_of_variables(const variable_lookup& variable);

/// Whether `AWS_IGNORE_CONFIGURED_ENDPOINT_URLS` is set.
[[nodiscard]] result<bool> ignores_endpoints(const variable_lookup& variable);

/// What a variable that is a switch says: 1, true, yes, on, or 0, false, no, off, or empty. Errors
/// are `invalid_request` and name the variable.
[[nodiscard]] result<bool> read_switch(const named_value& set);

/// The variables that links of the chain read, as they are now: requests are made on other threads,
/// and later.
[[nodiscard]] variable_lookup remember_aws_variables(const variable_lookup& variable);

}  // namespace headrace
