#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace headrace {

/// Splits `text` into words as a POSIX shell would, and as Python's `shlex.split` does: blanks
/// separate, `'…'` is literal, `"…"` knows `\"` and `\\`, `\` takes the next character as it is.
/// Nothing is expanded: no variables, no globs, no comments. Nothing where a quotation or an escape
/// has no end.
[[nodiscard]] std::optional<std::vector<std::string>> split_shell_words(std::string_view text);

}  // namespace headrace
