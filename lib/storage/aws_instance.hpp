#pragma once

#include "storage/aws_keys.hpp"

#include <headrace/coro/task.hpp>
#include <headrace/http/http_origin.hpp>

#include <optional>
#include <string>

namespace headrace {

/// What asking the machine has led to.
struct aws_instance_keys {
  std::optional<aws_keys> keys;
  std::string nothing;  ///< Why there are none: "nobody answers".
};

/// The keys of the role of the machine that we run on, from the instance metadata service of EC2
/// (IMDSv2: a token first, then the role's name, then its keys). Nothing, soon, where nobody is
/// there, where the machine has no role and where `AWS_EC2_METADATA_DISABLED` is true.
/// `AWS_EC2_METADATA_SERVICE_ENDPOINT`, or `AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE` (`IPv6`), name
/// another place; then it is an error that nobody is there. Errors: those of `ask_service`,
/// `access_denied`, `protocol_error`; `invalid_request` names the variable.
[[nodiscard]] task<result<aws_instance_keys>> keys_of_instance(aws_search search);

}  // namespace headrace
