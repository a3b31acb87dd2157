#pragma once

#include <headrace/base/result.hpp>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace headrace {

/// `[name]` and what follows it.
struct ini_section {
  std::string name;
  /// Names in lower case. The value of `s3 =` with indented lines below it is these lines, each
  /// after a line end: `"\nmax_queue_size = 10\naddressing_style = path"`.
  std::vector<std::pair<std::string, std::string>> values;
};

/// Reads an INI file as Python's `configparser` does, and so the AWS tools: `=` or `:` after a
/// name, lines that begin with `#` or `;` are comments (nothing after a value is), deeper indented
/// lines continue a value. Errors are `invalid_request` and name `file` and the line, never what
/// stands there: text before the first section, a line that is neither section nor value, a section
/// or a name that comes twice.
[[nodiscard]] result<std::vector<ini_section>> parse_ini(std::string_view text,
                                                         const std::string& file);

}  // namespace headrace
