#pragma once

#include "storage/aws_keys.hpp"

#include <headrace/coro/task.hpp>

#include <string>
#include <string_view>

namespace headrace {

/// A role to take on, and on whose behalf.
struct aws_role {
  std::string arn;
  std::string session_name;  ///< Empty: one of headrace's own.
  std::string external_id;   ///< Empty: none.
  unsigned duration = 0;     ///< Seconds; 0: as the role says.
  std::string told_by;       ///< For messages: "profile 'prod' in /home/me/.aws/config".
};

/// Takes on `role` with `base`, which must be keys (AssumeRole). Errors: those of `ask_service`,
/// `access_denied` with what the service says, `protocol_error`.
[[nodiscard]] task<result<aws_keys>> assume_role(aws_search search, aws_role role, aws_keys base);

/// Takes on `role` with a token that somebody else has signed (AssumeRoleWithWebIdentity): the file
/// `token_file` is read each time, since it is written anew. Errors: the same, and those of the
/// file.
[[nodiscard]] task<result<aws_keys>> assume_role_with_web_identity(aws_search search, aws_role role,
                                                                   std::string token_file);

/// What `AWS_WEB_IDENTITY_TOKEN_FILE`, `AWS_ROLE_ARN` and `AWS_ROLE_SESSION_NAME` lead to. Errors
/// name the variable: one without the other.
[[nodiscard]] task<found_aws_keys> keys_of_web_identity(aws_search search);

/// Reads an answer of STS with keys in it. `protocol_error` where it is none.
[[nodiscard]] result<aws_keys> parse_sts_keys(std::string_view body, const std::string& about);

}  // namespace headrace
