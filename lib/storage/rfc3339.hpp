#pragma once

#include <chrono>
#include <optional>
#include <string_view>

namespace headrace {

/// Reads `2014-10-02T15:01:23Z`, with or without a fraction (which is dropped), with `Z` or an
/// offset (RFC 3339). Nothing where the text is none, or no day of the calendar. What lies before
/// 1970 is its beginning, what lies after 2255 that year's: nanoseconds reach little further, and
/// some write 9999 for never.
[[nodiscard]] std::optional<std::chrono::sys_seconds> parse_rfc3339(std::string_view text);

}  // namespace headrace
