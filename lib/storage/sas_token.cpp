#include "storage/sas_token.hpp"

#include "storage/percent.hpp"
#include "storage/text.hpp"

#include <array>
#include <chrono>
#include <cstddef>

namespace headrace {
namespace {

constexpr std::size_t longest_token = 4096;

// `2024-02-29`, `2024-02-29T12:30Z`, `2024-02-29T12:30:00Z`, `2024-02-29T12:30:00.1234567Z`
std::optional<system_time> parse_time(std::string_view text) {
  const auto number = [&text](std::size_t at, std::size_t size) -> int {
    if (text.size() < at + size) return -1;
    int value = 0;
    for (const char c : text.substr(at, size)) {
      if (!detail::is_digit(c)) return -1;
      value = 10 * value + (c - '0');
    }
    return value;
  };
  if (text.size() < 10 || text[4] != '-' || text[7] != '-') return std::nullopt;
  const std::array<int, 3> date{number(0, 4), number(5, 2), number(8, 2)};
  if (date[0] < 0 || date[1] < 0 || date[2] < 0) return std::nullopt;
  const std::chrono::year_month_day day{std::chrono::year(date[0]),
                                        std::chrono::month(static_cast<unsigned>(date[1])),
                                        std::chrono::day(static_cast<unsigned>(date[2]))};
  // Nanoseconds do not reach everywhere: later is never, and nobody signed anything earlier.
  if (!day.ok() || day.year() < std::chrono::year(1970) || day.year() > std::chrono::year(2200))
    return std::nullopt;
  std::chrono::seconds time{0};
  if (text.size() > 10) {
    if (text[10] != 'T' || text.back() != 'Z' || text.size() < 17 || text[13] != ':')
      return std::nullopt;
    const int hours = number(11, 2);
    const int minutes = number(14, 2);
    const int seconds = text[16] == ':' ? number(17, 2) : 0;
    if (hours < 0 || hours > 23 || minutes < 0 || minutes > 59 || seconds < 0 || seconds > 60)
      return std::nullopt;
    time =
        std::chrono::hours(hours) + std::chrono::minutes(minutes) + std::chrono::seconds(seconds);
  }
  return std::chrono::sys_days(day) + time;
}

}  // namespace

std::optional<sas_token> parse_sas_token(std::string_view text) {
  text = detail::trimmed(text);
  if (text.starts_with('?')) text.remove_prefix(1);
  if (text.size() > longest_token || !detail::all(text, detail::is_visible)) return std::nullopt;
  sas_token token;
  bool is_signed = false;
  while (!text.empty()) {
    const auto end = text.find('&');
    const auto part = text.substr(0, end);
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
    if (part.empty()) continue;
    const auto equals = part.find('=');
    if (equals == std::string_view::npos || equals == 0) return std::nullopt;
    const auto name = percent_decode(part.substr(0, equals));
    // Some tools hand tokens out decoded: then a `+` of the signature is one, and no space.
    const auto value = percent_decode(part.substr(equals + 1));
    if (!name || !value) return std::nullopt;
    if (*name == "sig") is_signed = !value->empty();
    if (*name == "sp") token.permissions = *value;
    if (*name == "st") token.starts = parse_time(*value);
    if (*name == "se") token.expires = parse_time(*value);
    if (!token.query.empty()) token.query += '&';
    token.query +=
        percent_encode(*name, slash::encoded) + '=' + percent_encode(*value, slash::encoded);
  }
  if (!is_signed) return std::nullopt;
  return token;
}

}  // namespace headrace
