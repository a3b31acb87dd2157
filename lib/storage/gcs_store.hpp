#pragma once

#include "storage/google_credentials.hpp"
#include "storage/http_object_store.hpp"
#include "storage/variables.hpp"

namespace headrace {

/// The store of `gs://bucket/prefix`, with the environment and the clock that a test gives it.
/// `time` outlives the store.
[[nodiscard]] result<std::shared_ptr<object_store>> make_gcs_store(
    const uri& location, const storage_options& options, const variable_lookup& variable,
    const clock& time = real_clock());

}  // namespace headrace
