#pragma once

#include <cstdint>

namespace headrace {

/// A run of bytes of an object: `[begin, begin + size)`.
struct byte_range {
  std::uint64_t begin = 0;
  std::uint64_t size = 0;

  [[nodiscard]] constexpr std::uint64_t end() const noexcept { return begin + size; }
  [[nodiscard]] constexpr bool empty() const noexcept { return size == 0; }

  friend constexpr bool operator==(const byte_range&, const byte_range&) = default;
};

}  // namespace headrace
