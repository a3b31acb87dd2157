#include "storage/variables.hpp"

#include <cstdlib>

namespace headrace {

std::optional<std::string> process_variable(const char* name) {
  const char* const value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): see the contract
  if (value == nullptr) return std::nullopt;
  return std::string(value);
}

named_value first_of(const variable_lookup& variable, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (auto value = variable(name); value && !value->empty()) return {name, *std::move(value)};
  }
  return {};
}

}  // namespace headrace
