#include <headrace/base/sizes.hpp>

#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>

namespace headrace {
namespace {

failure<error> not_a_size(std::string_view text) {
  return failure{error(errc::invalid_request,
                       "'" + std::string(text) +
                           "' is not a size: write bytes or a number with a unit, such as 16MiB")};
}

}  // namespace

result<std::uint64_t> parse_size(std::string_view text) {
  const char* const end = text.data() + text.size();
  std::string_view unit;
  std::uint64_t whole = 0;
  double number = 0;
  const auto integer = std::from_chars(text.data(), end, whole);
  bool fractional = false;
  if (integer.ec != std::errc{}) return not_a_size(text);
  const char* rest = integer.ptr;
  if (rest != end && *rest == '.') {
    fractional = true;
    const auto decimal = std::from_chars(text.data(), end, number, std::chars_format::fixed);
    if (decimal.ec != std::errc{}) return not_a_size(text);
    rest = decimal.ptr;
  }
  while (rest != end && *rest == ' ') ++rest;
  unit = {rest, static_cast<std::size_t>(end - rest)};

  unsigned shift = 0;
  if (!unit.empty()) {
    const auto lower = [](char letter) { return static_cast<char>(letter | 0x20); };
    constexpr std::string_view scales = "kmgt";
    const auto scale = scales.find(lower(unit[0]));
    if (scale != std::string_view::npos) {
      shift = static_cast<unsigned>(10 * (scale + 1));
      unit.remove_prefix(1);
      if (!unit.empty() && lower(unit[0]) == 'i') {
        unit.remove_prefix(1);
        if (unit.empty()) return not_a_size(text);
      }
    }
    if (!unit.empty() && lower(unit[0]) == 'b') unit.remove_prefix(1);
    if (!unit.empty()) return not_a_size(text);
  }
  if (fractional) {
    const double bytes = std::ldexp(number, static_cast<int>(shift));
    if (!(bytes < 9.2e18)) return not_a_size(text);
    return static_cast<std::uint64_t>(bytes);
  }
  if (whole > (UINT64_MAX >> shift)) return not_a_size(text);
  return whole << shift;
}

std::string format_size(std::uint64_t bytes) {
  constexpr std::array<const char*, 5> units = {"B", "KiB", "MiB", "GiB", "TiB"};
  if (bytes < 1024) return std::to_string(bytes) + " B";
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1023.995 && unit + 1 < units.size()) {
    value /= 1024;
    ++unit;
  }
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), value < 10 ? "%.2f %s" : "%.1f %s", value, units[unit]);
  return text.data();
}

}  // namespace headrace
