#include "storage/content_range.hpp"

#include "storage/text.hpp"

#include <charconv>
#include <limits>
#include <system_error>

namespace headrace {

std::optional<std::uint64_t> parse_decimal(std::string_view text) {
  // from_chars alone would take a prefix; 20 digits hold every 64-bit number, and more would only
  // be zeros in front.
  if (text.empty() || text.size() > 20) return std::nullopt;
  if (!detail::all(text, detail::is_digit)) return std::nullopt;
  std::uint64_t number = 0;
  if (std::from_chars(text.data(), text.data() + text.size(), number).ec != std::errc{})
    return std::nullopt;
  return number;
}

std::optional<content_range> parse_content_range(std::string_view text) {
  constexpr std::string_view unit = "bytes";
  text = detail::trimmed(text);
  if (text.size() <= unit.size() || !detail::same_name(text.substr(0, unit.size()), unit) ||
      text[unit.size()] != ' ') {
    return std::nullopt;
  }
  text.remove_prefix(unit.size() + 1);

  const auto slash = text.find('/');
  if (slash == std::string_view::npos) return std::nullopt;
  const auto range = text.substr(0, slash);
  const auto size = text.substr(slash + 1);

  content_range parsed;
  if (size != "*") {
    parsed.total = parse_decimal(size);
    if (!parsed.total) return std::nullopt;
  }
  if (range == "*") {
    if (!parsed.total) return std::nullopt;
    return parsed;
  }
  const auto dash = range.find('-');
  if (dash == std::string_view::npos) return std::nullopt;
  const auto first = parse_decimal(range.substr(0, dash));
  const auto last = parse_decimal(range.substr(dash + 1));
  if (!first || !last || *last < *first) return std::nullopt;
  if (*last == std::numeric_limits<std::uint64_t>::max())
    return std::nullopt;  // its end is no number any more
  if (parsed.total && *last >= *parsed.total) return std::nullopt;
  parsed.range = byte_range{*first, *last - *first + 1};
  return parsed;
}

}  // namespace headrace
