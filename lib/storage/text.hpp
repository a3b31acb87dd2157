#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>

/// What text may stand where, in ASCII and without locales.
namespace headrace::detail {

[[nodiscard]] constexpr char lower(char c) noexcept {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

[[nodiscard]] inline std::string lower(std::string_view text) {
  std::string lowered(text);
  for (char& c : lowered) c = lower(c);
  return lowered;
}

[[nodiscard]] constexpr bool is_digit(char c) noexcept { return c >= '0' && c <= '9'; }

[[nodiscard]] constexpr bool is_alphanumeric(char c) noexcept {
  return is_digit(c) || (lower(c) >= 'a' && lower(c) <= 'z');
}

[[nodiscard]] constexpr bool is_control(char c) noexcept {
  const auto byte = static_cast<unsigned char>(c);
  return byte < 0x20 || byte == 0x7f;
}

/// Printable, and no space.
[[nodiscard]] constexpr bool is_visible(char c) noexcept { return c > 0x20 && c < 0x7f; }

template <class Predicate>
[[nodiscard]] bool all(std::string_view text, Predicate predicate) {
  return std::all_of(text.begin(), text.end(), predicate);
}

/// A field's value without the spaces and tabs that HTTP allows around it.
[[nodiscard]] inline std::string_view trimmed(std::string_view text) noexcept {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

/// What a peer says about itself, fit for one line of a message: printable ASCII, at most `most`
/// bytes.
[[nodiscard]] inline std::string printable(std::string_view text, std::size_t most) {
  std::string clean(trimmed(text).substr(0, most));
  for (char& c : clean) {
    if (c < 0x20 || c > 0x7e) c = is_control(c) ? ' ' : '?';
  }
  return clean;
}

/// Whether two names of HTTP are the same.
[[nodiscard]] inline bool same_name(std::string_view left, std::string_view right) noexcept {
  return std::equal(left.begin(), left.end(), right.begin(), right.end(),
                    [](char a, char b) { return lower(a) == lower(b); });
}

/// Whether a file can have this path. A token that was put where its file's path belongs mostly
/// cannot be one, and must not be repeated.
[[nodiscard]] inline bool can_be_path(std::string_view text) noexcept {
  constexpr std::size_t longest_name = 255;  // NAME_MAX
  while (!text.empty()) {
    const auto name = text.substr(0, text.find('/'));
    if (name.size() > longest_name || !all(name, [](char c) { return !is_control(c); }))
      return false;
    text.remove_prefix(name.size() < text.size() ? name.size() + 1 : name.size());
  }
  return true;
}

/// The name of a region, of AWS or of another store: safe in a header field, no more.
[[nodiscard]] inline bool is_region(std::string_view text) noexcept {
  return !text.empty() && text.size() <= 64 &&
         all(text, [](char c) { return is_alphanumeric(c) || c == '-' || c == '_' || c == '.'; });
}

/// The name of a region of AWS: safe as a label of a host name.
[[nodiscard]] inline bool is_region_label(std::string_view text) noexcept {
  return !text.empty() && text.size() <= 63 && text.front() != '-' && text.back() != '-' &&
         all(text, [](char c) { return is_digit(c) || (c >= 'a' && c <= 'z') || c == '-'; });
}

/// A name of a host or an address of IPv4, with or without a port.
[[nodiscard]] inline bool is_host(std::string_view text) noexcept {
  return !text.empty() && text.size() <= 261 && is_alphanumeric(text.front()) &&
         all(text, [](char c) { return is_alphanumeric(c) || c == '-' || c == '.' || c == ':'; });
}

}  // namespace headrace::detail
