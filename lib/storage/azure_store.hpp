#pragma once

#include "storage/http_object_store.hpp"
#include "storage/variables.hpp"

#include <memory>

namespace headrace {

/// As `make_azure_store`, with an environment of the caller's. `variable` is not kept.
[[nodiscard]] result<std::shared_ptr<object_store>> make_azure_store_from(
    const uri& location, const storage_options& options, const variable_lookup& variable);

}  // namespace headrace
