#pragma once

#include <chrono>
#include <optional>
#include <string_view>

namespace headrace {

/// Reads a date of HTTP in any of its three forms (RFC 9110, 5.6.7): `Sun, 06 Nov 1994 08:49:37
/// GMT`, `Sunday, 06-Nov-94 08:49:37 GMT`, `Sun Nov  6 08:49:37 1994`. A year of two digits that
/// would be more than 50 years after `now` lies in the past. Nothing where the text is none of
/// them, or no day of the calendar.
[[nodiscard]] std::optional<std::chrono::sys_seconds> parse_http_date(std::string_view text,
                                                                      std::chrono::sys_seconds now);

/// Reads `Retry-After`: seconds, or a date from which `now` is taken. Never negative and at most a
/// hundred years, whatever was asked for. Nothing where the text is neither.
[[nodiscard]] std::optional<std::chrono::seconds> parse_retry_after(std::string_view text,
                                                                    std::chrono::sys_seconds now);

}  // namespace headrace
