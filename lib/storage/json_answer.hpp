#pragma once

#include <boost/json/object.hpp>
#include <boost/json/value.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

/// JSON as services and credential files write it. What a peer sends is never trusted: what it may
/// cost is bounded by the caller's limit on the text, and its depth here.
namespace headrace::detail {

/// Reads one JSON text. Nothing where it is none, or nests deeper than 32.
[[nodiscard]] std::optional<boost::json::value> parse_json(std::string_view text);

/// Reads one JSON text that is an object.
[[nodiscard]] std::optional<boost::json::object> parse_json_object(std::string_view text);

/// The string `name`; empty where it is absent or no string.
[[nodiscard]] std::string string_of(const boost::json::object& object, std::string_view name);

/// The integer `name`, not negative; also where it is written as a string. Nothing otherwise.
[[nodiscard]] std::optional<std::uint64_t> integer_of(const boost::json::object& object,
                                                      std::string_view name);

/// The object `name`; null where it is absent or no object.
[[nodiscard]] const boost::json::object* object_of(const boost::json::object& object,
                                                   std::string_view name);

}  // namespace headrace::detail
