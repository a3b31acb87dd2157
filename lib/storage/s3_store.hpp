#pragma once

#include "storage/http_object_store.hpp"
#include "storage/variables.hpp"

#include <headrace/base/clock.hpp>

#include <memory>

namespace headrace {

/// The store of `s3://bucket/key`, with the environment that `variable` shows and the time of
/// `time`, which outlives it. Errors are `invalid_request` and `unsupported`: those of
/// `read_aws_settings` and `make_s3_address`, and a bucket without a key.
[[nodiscard]] result<std::shared_ptr<object_store>> open_s3_store(const uri& location,
                                                                  const storage_options& options,
                                                                  const variable_lookup& variable,
                                                                  const clock& time = real_clock());

}  // namespace headrace
