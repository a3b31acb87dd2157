#pragma once

#include <algorithm>
#include <string_view>

namespace headrace::detail {

// HTTP's letters are ASCII whatever the locale.
[[nodiscard]] constexpr char to_lower(char c) noexcept {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

[[nodiscard]] constexpr bool same_ignoring_case(std::string_view left,
                                                std::string_view right) noexcept {
  return left.size() == right.size() &&
         std::equal(left.begin(), left.end(), right.begin(),
                    [](char a, char b) { return to_lower(a) == to_lower(b); });
}

[[nodiscard]] constexpr bool is_control(char c) noexcept {
  const auto byte = static_cast<unsigned char>(c);
  return byte < 0x20 || byte == 0x7f;
}

/// A character of a `token` (RFC 9110, 5.6.2): what methods and field names are made of.
[[nodiscard]] constexpr bool is_token(char c) noexcept {
  if ((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) return true;
  return std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
}

}  // namespace headrace::detail
