#pragma once

#include "storage/aws_keys.hpp"
#include "storage/aws_profiles.hpp"

#include <headrace/coro/task.hpp>

#include <string>

namespace headrace {

/// Whether a profile logs in by IAM Identity Center: it names an `sso_session` or an
/// `sso_start_url`, and an account.
[[nodiscard]] bool uses_sso(const aws_section& profile);

/// The keys of the profile `name` by the token that `aws sso login` has left in ~/.aws/sso/cache.
/// Errors: `invalid_request` names what the profile lacks; `access_denied` for a token that is not
/// there, has run out or is refused says how to log in; those of `ask_service`; `protocol_error`.
[[nodiscard]] task<result<aws_keys>> keys_of_sso(aws_search search, const aws_profiles& files,
                                                 std::string name);

/// The name of the file that the token is kept in: the SHA-1 of the session's name, or of the start
/// URL where there is no session.
[[nodiscard]] std::string sso_cache_name(const std::string& session_or_url);

}  // namespace headrace
