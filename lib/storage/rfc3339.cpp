#include "storage/rfc3339.hpp"

#include "storage/text.hpp"

#include <algorithm>
#include <cstddef>

namespace headrace {
namespace {

/// Takes `digits` digits from the front; -1 where there are none.
int take_number(std::string_view& text, std::size_t digits) {
  if (text.size() < digits || !detail::all(text.substr(0, digits), detail::is_digit)) return -1;
  int number = 0;
  for (const char c : text.substr(0, digits)) number = number * 10 + (c - '0');
  text.remove_prefix(digits);
  return number;
}

bool take_one_of(std::string_view& text, std::string_view letters) {
  if (text.empty() || letters.find(text.front()) == std::string_view::npos) return false;
  text.remove_prefix(1);
  return true;
}

}  // namespace

std::optional<std::chrono::sys_seconds> parse_rfc3339(std::string_view text) {
  namespace chrono = std::chrono;
  const int year = take_number(text, 4);
  if (!take_one_of(text, "-")) return std::nullopt;
  const int month = take_number(text, 2);
  if (!take_one_of(text, "-")) return std::nullopt;
  const int day = take_number(text, 2);
  if (!take_one_of(text, "Tt ")) return std::nullopt;
  const int hour = take_number(text, 2);
  if (!take_one_of(text, ":")) return std::nullopt;
  const int minute = take_number(text, 2);
  if (!take_one_of(text, ":")) return std::nullopt;
  const int second = take_number(text, 2);
  if (take_one_of(text, ".")) {
    if (take_number(text, 1) < 0) return std::nullopt;
    while (!text.empty() && detail::is_digit(text.front())) text.remove_prefix(1);
  }
  chrono::minutes offset{0};
  if (!take_one_of(text, "Zz")) {
    const bool west = !text.empty() && text.front() == '-';
    if (!take_one_of(text, "+-")) return std::nullopt;
    const int hours = take_number(text, 2);
    if (!take_one_of(text, ":")) return std::nullopt;
    const int minutes = take_number(text, 2);
    if (hours < 0 || hours > 23 || minutes < 0 || minutes > 59) return std::nullopt;
    offset = chrono::hours(hours) + chrono::minutes(minutes);
    if (west) offset = -offset;
  }
  if (!text.empty() || year < 0 || month < 0 || day < 0) return std::nullopt;
  if (hour < 0 || hour > 23 || minute < 0 || minute > 59 || second < 0 || second > 60)
    return std::nullopt;
  const chrono::year_month_day date{chrono::year(year), chrono::month(static_cast<unsigned>(month)),
                                    chrono::day(static_cast<unsigned>(day))};
  if (!date.ok()) return std::nullopt;
  const chrono::sys_seconds time = chrono::sys_days(date) + chrono::hours(hour) +
                                   chrono::minutes(minute) + chrono::seconds(second) - offset;
  return std::clamp(time, chrono::sys_seconds(chrono::sys_days(chrono::year(1970) / 1 / 1)),
                    chrono::sys_seconds(chrono::sys_days(chrono::year(2255) / 1 / 1)));
}

}  // namespace headrace
