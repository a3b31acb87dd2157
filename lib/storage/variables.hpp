#pragma once

#include <functional>
#include <initializer_list>
#include <optional>
#include <string>

namespace headrace {

/// Looks up an environment variable; nothing where it is not set. Injectable for tests.
using variable_lookup = std::function<std::optional<std::string>(const char* name)>;

/// The process's own variables. Reads the environment without a lock, as everything does: not while
/// it is being changed.
[[nodiscard]] std::optional<std::string> process_variable(const char* name);

/// A variable and what it holds.
struct named_value {
  const char* name = "";
  std::string value;  ///< Empty: none of the variables is set.
};

/// The first of the variables that is set and not empty.
[[nodiscard]] named_value first_of(const variable_lookup& variable,
                                   std::initializer_list<const char*> names);

}  // namespace headrace
