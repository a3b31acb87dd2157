#pragma once

#include "storage/aws_keys.hpp"
#include "storage/aws_profiles.hpp"

#include <headrace/coro/task.hpp>

#include <string>

namespace headrace {

/// The keys of the profile `name`: a role (`role_arn`) taken on with the keys of another profile
/// (`source_profile`, which may be a role itself), of this process (`credential_source`) or with a
/// token (`web_identity_token_file`); SSO; keys that stand there; what `credential_process` writes.
/// In this order, as the AWS tools have it. Nothing where the profile says nothing about keys.
///
/// Errors name the profile and its file: half of the keys, a source that is not there or leads back
/// to itself, a role that wants a code of an MFA device (`unsupported`), and those of each link.
/// `files` outlives the task.
[[nodiscard]] task<found_aws_keys> keys_of_profile(aws_search search, const aws_profiles& files,
                                                   std::string name);

}  // namespace headrace
