#include "duration.hpp"

#include <array>
#include <charconv>
#include <cmath>
#include <string>
#include <utility>

namespace headrace::cli {
namespace {

constexpr std::array<std::pair<std::string_view, double>, 5> units = {
    {{"", 1000}, {"ms", 1}, {"s", 1000}, {"m", 60'000}, {"h", 3'600'000}}};

// A century: what adds up with the clock's own time without an overflow.
constexpr double longest = 100.0 * 365 * 24 * 3'600'000;

}  // namespace

result<std::chrono::milliseconds> parse_duration(std::string_view text) {
  double number = 0;
  const char* const end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, number, std::chars_format::fixed);
  if (parsed.ec == std::errc{} && std::isfinite(number) && !std::signbit(number)) {
    const std::string_view written(parsed.ptr, static_cast<std::size_t>(end - parsed.ptr));
    for (const auto& [unit, milliseconds] : units) {
      if (written != unit || number * milliseconds > longest) continue;
      return std::chrono::milliseconds(static_cast<std::int64_t>(std::ceil(number * milliseconds)));
    }
  }
  return failure{
      error(errc::invalid_request,
            "'" + std::string(text) +
                "' is not a duration: write seconds or a number with ms, s, m or h, such as 20s")};
}

}  // namespace headrace::cli
