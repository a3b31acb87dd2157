#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace headrace {

/// What becomes of `/`: the separator of a path, or a character like any other (in a query).
enum class slash { literal, encoded };

/// Percent-encodes every byte that is not unreserved (RFC 3986: letters, digits, `-._~`), with
/// upper-case digits, as SigV4 demands. Nothing is normalised: `//`, `.` and `..` stay.
[[nodiscard]] std::string percent_encode(std::string_view text, slash treatment = slash::literal);

/// What `+` stands for: itself (RFC 3986), or a space (forms, and S3's `encoding-type=url`).
enum class plus { literal, space };

/// Decodes once. Nothing where a `%` is not followed by two hexadecimal digits.
[[nodiscard]] std::optional<std::string> percent_decode(std::string_view text,
                                                        plus treatment = plus::literal);

}  // namespace headrace
