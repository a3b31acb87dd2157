#include "safetensors/json.hpp"

#include <boost/json/basic_parser_impl.hpp>

#include <array>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <string>
#include <tuple>
#include <utility>

namespace headrace::detail {
namespace {

bool is_digit(char letter) { return letter >= '0' && letter <= '9'; }

// What a power of ten beyond a double's range does to a number is serde_json's own arithmetic, not
// IEEE's: near the largest double its answer differs from a correctly rounded one. So it is done
// here as serde_json 1 does it, step by step. `text` is a number by JSON's grammar.
bool fits_double(std::string_view text) {
  static constexpr std::uint64_t largest = std::numeric_limits<std::uint64_t>::max();
  static const auto powers = [] {
    std::array<double, 309> table{};
    for (std::size_t at = 0; at < table.size(); ++at)
      table[at] = std::strtod(("1e" + std::to_string(at)).c_str(), nullptr);
    return table;
  }();

  std::size_t at = text.starts_with('-') ? 1 : 0;
  const auto digit = [&] { return at < text.size() && is_digit(text[at]); };
  std::uint64_t significand = 0;
  std::int64_t exponent = 0;
  bool full = false;
  const auto take = [&] {
    const auto value = static_cast<std::uint64_t>(text[at] - '0');
    full = full || significand > (largest - value) / 10;
    if (!full) significand = significand * 10 + value;
    return !full;
  };
  for (; digit(); ++at) {
    if (!take()) ++exponent;
  }
  if (at < text.size() && text[at] == '.') {
    // serde_json tries again with the digits of the fraction: they may fit where one of the integer
    // part did not.
    full = false;
    for (++at; digit(); ++at) {
      if (take()) --exponent;
    }
  }
  if (at < text.size()) {
    ++at;  // 'e' or 'E'
    const bool negative = text[at] == '-';
    if (!is_digit(text[at])) ++at;
    std::int64_t power = 0;
    for (; digit(); ++at) {
      power = power * 10 + (text[at] - '0');
      if (power > std::numeric_limits<std::int32_t>::max()) return significand == 0 || negative;
    }
    exponent += negative ? -power : power;
  }

  auto value = static_cast<double>(significand);
  while (exponent < -308 && value != 0) {
    value /= 1e308;
    exponent += 308;
  }
  if (value == 0) return true;
  if (exponent < 0) return true;
  if (exponent > 308) return false;
  return !std::isinf(value * powers[static_cast<std::size_t>(exponent)]);
}

// Boost.JSON's handler: joins the parts of strings, sorts out numbers and passes all on.
struct handler {
  static constexpr std::size_t max_object_size = std::numeric_limits<std::size_t>::max();
  static constexpr std::size_t max_array_size = max_object_size;
  static constexpr std::size_t max_key_size = max_object_size;
  static constexpr std::size_t max_string_size = max_object_size;

  using error_code = boost::json::error_code;
  using string_view = boost::json::string_view;

  explicit handler(json_listener& target) : listener(target) {}

  bool on_document_begin(error_code&) { return true; }
  bool on_document_end(error_code&) { return true; }
  bool on_object_begin(error_code& code) { return check(listener.object_begin(), code); }
  bool on_object_end(std::size_t, error_code& code) { return check(listener.object_end(), code); }
  bool on_array_begin(error_code& code) { return check(listener.array_begin(), code); }
  bool on_array_end(std::size_t, error_code& code) { return check(listener.array_end(), code); }

  bool on_key_part(string_view part, std::size_t, error_code&) { return add(part); }
  bool on_key(string_view part, std::size_t, error_code& code) {
    const bool go_on = listener.key(joined_with(part));
    joined.clear();
    return check(go_on, code);
  }
  bool on_string_part(string_view part, std::size_t, error_code&) { return add(part); }
  bool on_string(string_view part, std::size_t, error_code& code) {
    const bool go_on = listener.string(joined_with(part));
    joined.clear();
    return check(go_on, code);
  }

  // Parts of numbers come only where the text ends inside one or goes on in a later call, and there
  // is no later call.
  bool on_number_part(string_view, error_code&) { return true; }
  bool on_int64(std::int64_t value, string_view text, error_code& code) {
    if (text.front() == '-') return check(listener.other(plain(text)), code);
    return check(listener.integer(static_cast<std::uint64_t>(value)), code);
  }
  bool on_uint64(std::uint64_t value, string_view, error_code& code) {
    return check(listener.integer(value), code);
  }
  bool on_double(double, string_view text, error_code& code) {
    if (!fits_double(plain(text))) {
      out_of_range = true;
      return check(false, code);
    }
    return check(listener.other(plain(text)), code);
  }
  bool on_bool(bool value, error_code& code) {
    return check(listener.other(value ? "true" : "false"), code);
  }
  bool on_null(error_code& code) { return check(listener.other("null"), code); }

  bool on_comment_part(string_view, error_code&) { return true; }
  bool on_comment(string_view, error_code&) { return true; }

  static std::string_view plain(string_view text) { return {text.data(), text.size()}; }

  bool add(string_view part) {
    joined.append(part.data(), part.size());
    return true;
  }
  std::string_view joined_with(string_view last) {
    if (joined.empty()) return plain(last);
    add(last);
    return joined;
  }

  // The parser wants a code with every refusal; `stopped` says that this one is not its own.
  bool check(bool go_on, error_code& code) {
    if (go_on) return true;
    stopped = true;
    code = boost::json::error::exception;
    return false;
  }

  json_listener& listener;
  std::string joined;
  bool stopped = false;
  bool out_of_range = false;
};

// Boost.JSON refuses exponents beyond an `int`, where serde_json takes them if the value is 0 in
// the end. Cuts them to 10^9, which no run of digits in a text of this size makes up for: the same
// numbers are in range as before. Keeps every position.
std::string with_short_exponents(std::string_view text) {
  constexpr std::string_view substitute = "1000000000";
  std::string copy(text);
  bool in_string = false;
  for (std::size_t at = 0; at < copy.size(); ++at) {
    const char letter = copy[at];
    if (in_string) {
      if (letter == '\\') ++at;
      if (letter == '"') in_string = false;
    } else if (letter == '"') {
      in_string = true;
    } else if (at > 0 && (letter == 'e' || letter == 'E') && is_digit(copy[at - 1])) {
      std::size_t first = at + 1;
      if (first < copy.size() && (copy[first] == '-' || copy[first] == '+')) ++first;
      std::size_t last = first;
      while (last < copy.size() && is_digit(copy[last])) ++last;
      std::size_t significant = first;
      while (significant < last && copy[significant] == '0') ++significant;
      if (last - significant >= substitute.size()) {
        const std::size_t size = last - first;
        copy.replace(first, size,
                     std::string(size - substitute.size(), '0') + std::string(substitute));
      }
      at = last - 1;
    }
  }
  return copy;
}

std::string describe(const boost::json::error_code& code) {
  using boost::json::error;
  if (code == error::incomplete) return "it ends before its last value is complete";
  if (code == error::extra_data) return "something follows the end of the value";
  if (code == error::too_deep)
    return "arrays and objects nest more than " + std::to_string(json_depth_limit) + " deep";
  return code.message();
}

}  // namespace

std::optional<json_fault> read_json(std::string_view text, json_listener& listener) {
  boost::json::parse_options options;
  options.max_depth = json_depth_limit;
  options.allow_invalid_utf8 = true;  // checked by the caller: no need to do it twice

  const auto attempt =
      [&](std::string_view input) -> std::pair<boost::json::error_code, json_fault> {
    boost::json::basic_parser<handler> parser(options, listener);
    boost::json::error_code code;
    const std::size_t position = parser.write_some(false, input.data(), input.size(), code);
    if (!code && position < input.size()) code = boost::json::error::extra_data;
    if (!code) return {};
    if (parser.handler().out_of_range) return {code, {position, "a number is out of range"}};
    if (parser.handler().stopped) return {code, {position, {}}};
    return {code, {position, describe(code)}};
  };

  auto [code, fault] = attempt(text);
  if (code == boost::json::error::exponent_overflow) {
    listener.restart();
    std::tie(code, fault) = attempt(with_short_exponents(text));
  }
  if (!code) return std::nullopt;
  return std::move(fault);
}

}  // namespace headrace::detail
