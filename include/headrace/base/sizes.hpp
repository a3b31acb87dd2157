#pragma once

#include <headrace/base/export.hpp>
#include <headrace/base/result.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace headrace {

inline namespace literals {

// NOLINTBEGIN(google-runtime-int): the type that the language prescribes for integer literals
[[nodiscard]] consteval std::size_t operator""_KiB(unsigned long long count) { return count << 10; }
[[nodiscard]] consteval std::size_t operator""_MiB(unsigned long long count) { return count << 20; }
[[nodiscard]] consteval std::size_t operator""_GiB(unsigned long long count) { return count << 30; }
// NOLINTEND(google-runtime-int)

}  // namespace literals

/// Reads a size in bytes: `4194304`, `4MiB`, `4M`, `4MB`, `1.5GiB`, in any case. `K`, `M`, `G`,
/// `T`, with or without `B` or `iB`, are powers of 1024: what somebody who sizes memory means.
/// Anything else, an overflow included, is `invalid_request`.
[[nodiscard]] HEADRACE_API result<std::uint64_t> parse_size(std::string_view text);

/// A size for people: `512 B`, `1.50 KiB`, `23.4 MiB`.
[[nodiscard]] HEADRACE_API std::string format_size(std::uint64_t bytes);

}  // namespace headrace
