#pragma once

#include "storage/aws_keys.hpp"

#include <headrace/coro/task.hpp>
#include <headrace/http/http_origin.hpp>

namespace headrace {

/// Where ECS's own agent listens, for `AWS_CONTAINER_CREDENTIALS_RELATIVE_URI`.
[[nodiscard]] http_origin aws_container_agent();

/// The keys of the container that we run in: what `AWS_CONTAINER_CREDENTIALS_RELATIVE_URI` (asked
/// of `agent`) or `AWS_CONTAINER_CREDENTIALS_FULL_URI` lead to, with the token in the file that
/// `AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE` names, or in `AWS_CONTAINER_AUTHORIZATION_TOKEN`.
/// Nothing where neither is set. Errors name the variable: a URI that is none, one whose host may
/// not be asked without TLS (loopback, 169.254.170.2, 169.254.170.23 and fd00:ec2::23 may), a token
/// that cannot be sent; and those of `ask_service`, `access_denied`, `protocol_error`.
[[nodiscard]] task<found_aws_keys> keys_of_container(aws_search search, http_origin agent);

}  // namespace headrace
