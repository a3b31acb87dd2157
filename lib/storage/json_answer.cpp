#include "storage/json_answer.hpp"

#include <boost/json/parse.hpp>

#include <charconv>
#include <system_error>
#include <utility>

namespace headrace::detail {
namespace {

const boost::json::value* member_of(const boost::json::object& object, std::string_view name) {
  return object.if_contains({name.data(), name.size()});
}

}  // namespace

std::optional<boost::json::value> parse_json(std::string_view text) {
  boost::json::parse_options options;
  options.max_depth = 32;
  boost::system::error_code failed;
  auto value = boost::json::parse({text.data(), text.size()}, failed, {}, options);
  if (failed) return std::nullopt;
  return value;
}

std::optional<boost::json::object> parse_json_object(std::string_view text) {
  auto value = parse_json(text);
  if (!value || !value->is_object()) return std::nullopt;
  return std::move(value->get_object());
}

std::string string_of(const boost::json::object& object, std::string_view name) {
  const auto* const value = member_of(object, name);
  if (value == nullptr || !value->is_string()) return {};
  return {value->get_string().data(), value->get_string().size()};
}

std::optional<std::uint64_t> integer_of(const boost::json::object& object, std::string_view name) {
  const auto* const value = member_of(object, name);
  if (value == nullptr) return std::nullopt;
  if (value->is_uint64()) return value->get_uint64();
  if (value->is_int64() && value->get_int64() >= 0)
    return static_cast<std::uint64_t>(value->get_int64());
  if (!value->is_string()) return std::nullopt;
  const auto& text = value->get_string();
  std::uint64_t number = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), number);
  if (read.ec != std::errc{} || read.ptr != text.data() + text.size()) return std::nullopt;
  return number;
}

const boost::json::object* object_of(const boost::json::object& object, std::string_view name) {
  const auto* const value = member_of(object, name);
  return value == nullptr ? nullptr : value->if_object();
}

}  // namespace headrace::detail
