#pragma once

#include "storage/aws_environment.hpp"

#include <headrace/coro/task.hpp>

namespace headrace {

/// `given`, and where it leaves them open the profile's `region`, `endpoint_url` (that of its
/// `services` for S3 first) and `addressing_style`. Errors are those of `read_aws_profiles` and
/// `choose_profile`, and `invalid_request` for a value that is none, naming the file.
[[nodiscard]] task<result<aws_settings>> with_profile_settings(storage_loop& loop,
                                                               aws_settings given,
                                                               variable_lookup variable);

}  // namespace headrace
