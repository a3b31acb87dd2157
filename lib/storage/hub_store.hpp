#pragma once

#include "storage/http_object_store.hpp"
#include "storage/variables.hpp"

namespace headrace {

/// The store of `hf://org/repo[@revision][/folder]`, with the environment that a test gives it.
[[nodiscard]] result<std::shared_ptr<object_store>> make_hub_store(const uri& location,
                                                                   const storage_options& options,
                                                                   const variable_lookup& variable);

}  // namespace headrace
