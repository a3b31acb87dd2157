#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace headrace::cli {

/// `text` as a JSON string. Every control character is escaped, those of U+0080 to U+009F too: a
/// terminal obeys them.
[[nodiscard]] std::string json_string(std::string_view text);

/// A name as lines of output show it: as it is, or as a JSON string where it holds control
/// characters, quotes, backslashes or bytes that are not UTF-8.
[[nodiscard]] std::string printable_name(std::string_view name);

/// `text` with a space for every control character: safe on a terminal, and one line.
[[nodiscard]] std::string one_line(std::string_view text);

/// How many columns `text`, UTF-8, takes: its code points.
[[nodiscard]] std::size_t width(std::string_view text) noexcept;

/// `3.09 GB`: three digits and a decimal unit, as rates of networks are given.
[[nodiscard]] std::string decimal_size(double bytes);

/// `90,868,376`.
[[nodiscard]] std::string grouped(std::uint64_t number);

/// `0:07`, `12:34`, `1:02:03`.
[[nodiscard]] std::string clock_time(std::chrono::seconds duration);

}  // namespace headrace::cli
