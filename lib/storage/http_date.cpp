#include "storage/http_date.hpp"

#include "storage/content_range.hpp"
#include "storage/text.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace headrace {
namespace {

using std::chrono::sys_days;
using std::chrono::sys_seconds;

constexpr std::array<std::string_view, 7> short_days{"Sun", "Mon", "Tue", "Wed",
                                                     "Thu", "Fri", "Sat"};
constexpr std::array<std::string_view, 7> long_days{"Sunday",   "Monday", "Tuesday", "Wednesday",
                                                    "Thursday", "Friday", "Saturday"};
constexpr std::array<std::string_view, 12> months{"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                                  "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};

// Takes a text apart from its front; every step says whether it fitted.
class reader {
 public:
  explicit reader(std::string_view text) : rest_(text) {}

  bool literal(std::string_view expected) {
    if (rest_.substr(0, expected.size()) != expected) return false;
    rest_.remove_prefix(expected.size());
    return true;
  }

  template <std::size_t Count>
  bool one_of(const std::array<std::string_view, Count>& names, unsigned& index) {
    for (std::size_t i = 0; i < Count; ++i) {
      if (!literal(names[i])) continue;
      index = static_cast<unsigned>(i);
      return true;
    }
    return false;
  }

  template <std::size_t Count>
  bool one_of(const std::array<std::string_view, Count>& names) {
    unsigned ignored = 0;
    return one_of(names, ignored);
  }

  bool digits(std::size_t count, unsigned& number) {
    if (rest_.size() < count) return false;
    const auto parsed = parse_decimal(rest_.substr(0, count));
    if (!parsed) return false;
    number = static_cast<unsigned>(*parsed);
    rest_.remove_prefix(count);
    return true;
  }

  [[nodiscard]] bool done() const { return rest_.empty(); }

 private:
  std::string_view rest_;
};

struct parts {
  unsigned year = 0;
  unsigned month = 0;  // from 0
  unsigned day = 0;
  unsigned hour = 0;
  unsigned minute = 0;
  unsigned second = 0;
};

bool time_of_day(reader& text, parts& date) {
  return text.digits(2, date.hour) && text.literal(":") && text.digits(2, date.minute) &&
         text.literal(":") && text.digits(2, date.second);
}

// Sun, 06 Nov 1994 08:49:37 GMT
bool preferred(reader text, parts& date) {
  return text.one_of(short_days) && text.literal(", ") && text.digits(2, date.day) &&
         text.literal(" ") && text.one_of(months, date.month) && text.literal(" ") &&
         text.digits(4, date.year) && text.literal(" ") && time_of_day(text, date) &&
         text.literal(" GMT") && text.done();
}

// Sunday, 06-Nov-94 08:49:37 GMT
bool rfc850(reader text, parts& date) {
  return text.one_of(long_days) && text.literal(", ") && text.digits(2, date.day) &&
         text.literal("-") && text.one_of(months, date.month) && text.literal("-") &&
         text.digits(2, date.year) && text.literal(" ") && time_of_day(text, date) &&
         text.literal(" GMT") && text.done();
}

// Sun Nov  6 08:49:37 1994
bool asctime(reader text, parts& date) {
  return text.one_of(short_days) && text.literal(" ") && text.one_of(months, date.month) &&
         text.literal(" ") &&
         ((text.literal(" ") && text.digits(1, date.day)) || text.digits(2, date.day)) &&
         text.literal(" ") && time_of_day(text, date) && text.literal(" ") &&
         text.digits(4, date.year) && text.done();
}

std::optional<sys_seconds> of_calendar(const parts& date) {
  const std::chrono::year_month_day day{std::chrono::year{static_cast<int>(date.year)},
                                        std::chrono::month{date.month + 1},
                                        std::chrono::day{date.day}};
  // 60: a leap second, which the system's clock does not have.
  if (!day.ok() || date.hour > 23 || date.minute > 59 || date.second > 60) return std::nullopt;
  return sys_days{day} + std::chrono::hours{date.hour} + std::chrono::minutes{date.minute} +
         std::chrono::seconds{date.second};
}

}  // namespace

std::optional<sys_seconds> parse_http_date(std::string_view text, sys_seconds now) {
  const reader start(detail::trimmed(text));
  parts date;
  if (preferred(start, date) || asctime(start, date)) return of_calendar(date);

  if (!rfc850(start, date)) return std::nullopt;
  const std::chrono::year_month_day today{std::chrono::floor<std::chrono::days>(now)};
  const int century = static_cast<int>(today.year()) / 100 * 100;
  // The latest year with these digits that is not more than 50 years ahead.
  int year = century + 100 + static_cast<int>(date.year);
  while (year > static_cast<int>(today.year()) + 50) year -= 100;
  date.year = static_cast<unsigned>(std::max(year, 0));
  return of_calendar(date);
}

std::optional<std::chrono::seconds> parse_retry_after(std::string_view text, sys_seconds now) {
  constexpr std::chrono::seconds longest = std::chrono::hours{24} * 365 * 100;
  text = detail::trimmed(text);
  if (!text.empty() && detail::all(text, detail::is_digit)) {
    const auto seconds = parse_decimal(text);  // nothing: more than 64 bits
    if (!seconds || *seconds > static_cast<std::uint64_t>(longest.count())) return longest;
    return std::chrono::seconds{static_cast<std::int64_t>(*seconds)};
  }
  const auto date = parse_http_date(text, now);
  if (!date) return std::nullopt;
  return std::clamp(*date - now, std::chrono::seconds{0}, longest);
}

}  // namespace headrace
