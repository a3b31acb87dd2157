#pragma once

#include <headrace/base/byte_range.hpp>

#include <cstdint>
#include <optional>
#include <string_view>

namespace headrace {

/// The field `Content-Range` of an answer.
struct content_range {
  std::optional<byte_range> range;  ///< Not empty; nothing with a 416 (`bytes */1234`).
  std::optional<std::uint64_t>
      total;  ///< The size of the whole object; nothing where the peer does not say (`*`).

  friend bool operator==(const content_range&, const content_range&) = default;
};

/// Reads `bytes 0-9/1234`, `bytes 0-9/*` or `bytes */1234`. Nothing for everything else: another
/// unit, a sign, an overflow, an end before the begin or not below the total, spaces where the
/// grammar has none (it allows them around).
[[nodiscard]] std::optional<content_range> parse_content_range(std::string_view text);

/// Reads a decimal of HTTP or S3: one to twenty digits alone, below 2^64.
[[nodiscard]] std::optional<std::uint64_t> parse_decimal(std::string_view text);

}  // namespace headrace
