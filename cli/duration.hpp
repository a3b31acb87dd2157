#pragma once

#include <headrace/base/result.hpp>

#include <chrono>
#include <string_view>

namespace headrace::cli {

/// Reads a duration: `20s`, `500ms`, `2m`, `1h`, `1.5s`; a plain number is seconds. Anything else,
/// a negative one and an overflow included, is `invalid_request`. What is not zero never rounds to
/// zero.
[[nodiscard]] result<std::chrono::milliseconds> parse_duration(std::string_view text);

}  // namespace headrace::cli
