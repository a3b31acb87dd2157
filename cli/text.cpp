#include "text.hpp"

#include <headrace/base/trace.hpp>

#include <array>
#include <cstdio>

namespace headrace::cli {
namespace {

// U+0080 to U+009F, which is two bytes of UTF-8.
bool is_high_control(std::string_view text, std::size_t at) {
  if (at + 1 >= text.size() || static_cast<unsigned char>(text[at]) != 0xc2) return false;
  const auto second = static_cast<unsigned char>(text[at + 1]);
  return second >= 0x80 && second <= 0x9f;
}

bool is_low_control(char letter) {
  const auto byte = static_cast<unsigned char>(letter);
  return byte < 0x20 || byte == 0x7f;
}

}  // namespace

std::string json_string(std::string_view text) {
  const std::string quoted = json_quote(text);
  std::string escaped;
  escaped.reserve(quoted.size());
  for (std::size_t at = 0; at < quoted.size(); ++at) {
    if (!is_high_control(quoted, at)) {
      escaped += quoted[at];
      continue;
    }
    std::array<char, 8> escape{};
    std::snprintf(escape.data(), escape.size(), "\\u%04x",
                  static_cast<unsigned char>(quoted[++at]));
    escaped += escape.data();
  }
  return escaped;
}

std::string printable_name(std::string_view name) {
  std::string quoted = json_string(name);
  // Every escape is longer than what it stands for.
  return quoted.size() == name.size() + 2 ? std::string(name) : quoted;
}

std::string one_line(std::string_view text) {
  std::string line;
  line.reserve(text.size());
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (is_high_control(text, at)) {
      line += ' ';
      ++at;
    } else {
      line += is_low_control(text[at]) ? ' ' : text[at];
    }
  }
  return line;
}

std::size_t width(std::string_view text) noexcept {
  std::size_t columns = 0;
  for (const char letter : text) {
    if ((static_cast<unsigned char>(letter) & 0xc0) != 0x80) ++columns;
  }
  return columns;
}

std::string decimal_size(double bytes) {
  constexpr std::array<const char*, 6> units = {"B", "kB", "MB", "GB", "TB", "PB"};
  std::size_t unit = 0;
  while (bytes >= 999.5 && unit + 1 < units.size()) {
    bytes /= 1000;
    ++unit;
  }
  const int decimals = unit == 0 || bytes >= 99.95 ? 0 : bytes >= 9.995 ? 1 : 2;
  std::array<char, 48> text{};
  std::snprintf(text.data(), text.size(), "%.*f %s", decimals, bytes, units[unit]);
  return text.data();
}

std::string grouped(std::uint64_t number) {
  std::string digits = std::to_string(number);
  for (std::size_t at = digits.size(); at > 3;) {
    at -= 3;
    digits.insert(at, 1, ',');
  }
  return digits;
}

std::string clock_time(std::chrono::seconds duration) {
  const auto seconds = static_cast<long long>(duration.count());
  std::array<char, 48> text{};
  if (seconds < 3600) {
    std::snprintf(text.data(), text.size(), "%lld:%02lld", seconds / 60, seconds % 60);
  } else {
    std::snprintf(text.data(), text.size(), "%lld:%02lld:%02lld", seconds / 3600, seconds / 60 % 60,
                  seconds % 60);
  }
  return text.data();
}

}  // namespace headrace::cli
