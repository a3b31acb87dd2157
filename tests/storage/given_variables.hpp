#pragma once

#include "storage/variables.hpp"

#include <map>
#include <optional>
#include <string>
#include <utility>

namespace headrace::test {

/// An environment that holds these variables alone.
[[nodiscard]] inline variable_lookup given(std::map<std::string, std::string> variables) {
  return [variables = std::move(variables)](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end()) return std::nullopt;
    return found->second;
  };
}

}  // namespace headrace::test
