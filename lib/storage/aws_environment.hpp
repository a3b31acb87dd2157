#pragma once

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
  /// Keys to sign with; none: requests are sent without a signature.
  std::optional<aws_credentials> credentials;
  bool anonymous = false;  ///< Somebody asked for that: no other source of keys is to be tried.
  std::string endpoint;    ///< Empty: AWS.
  std::string region;      ///< Empty: not said.
  std::optional<bool> path_style;
};

/// Reads `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`, `AWS_ENDPOINT_URL_S3`
/// or `AWS_ENDPOINT_URL`, `AWS_REGION` or `AWS_DEFAULT_REGION`, `AWS_SKIP_SIGNATURE` or
/// `AWS_NO_SIGN_REQUEST` or `NO_SIGN_REQUEST`. Errors are `invalid_request` and name the variable,
/// never its value: one key without the other, keys with spaces or control characters, a switch
/// that is neither yes nor no.
[[nodiscard]] result<aws_settings> read_aws_settings(const storage_options& options,
                                                     const variable_lookup& variable);

}  // namespace headrace
