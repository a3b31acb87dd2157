#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace headrace::detail {

/// The position of the first byte that is not UTF-8 (RFC 3629: no surrogates, no overlong forms, at
/// most U+10FFFF); `npos` where all of it is.
[[nodiscard]] std::size_t find_invalid_utf8(std::string_view text) noexcept;

/// `text` in quotes for a message: escaped like JSON, and only its start where it is long.
[[nodiscard]] std::string quote(std::string_view text);

/// `1 byte`, `2 bytes`.
[[nodiscard]] std::string count(std::uint64_t number, std::string_view noun);

}  // namespace headrace::detail
