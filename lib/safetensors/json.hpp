#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace headrace::detail {

/// Receives what `read_json` finds, in the text's order. Every function returns whether to go on.
/// Views live as long as the call.
class json_listener {
 public:
  /// The text is read again from its start: forget what came so far. Rare: see `read_json`.
  virtual void restart() = 0;
  virtual bool object_begin() = 0;
  virtual bool object_end() = 0;
  virtual bool array_begin() = 0;
  virtual bool array_end() = 0;
  /// A member's name, unescaped. May hold NUL.
  virtual bool key(std::string_view text) = 0;
  /// A string, unescaped. May hold NUL.
  virtual bool string(std::string_view text) = 0;
  /// A number that is written as a plain integer from 0 to 2^64 - 1: no sign, fraction or exponent.
  virtual bool integer(std::uint64_t value) = 0;
  /// `null`, `true`, `false` or any other number, as it is written.
  virtual bool other(std::string_view text) = 0;

 protected:
  ~json_listener() = default;
};

/// Why a text was not read to its end.
struct json_fault {
  std::size_t position = 0;  ///< Of the byte where it was noticed.
  std::string what;          ///< Empty where the listener stopped.
};

/// How deep arrays and objects may nest, the outermost included.
inline constexpr std::size_t json_depth_limit = 127;

/// Reads one JSON text (RFC 8259) without building anything from it.
///
/// Accepts exactly what serde_json accepts: all of RFC 8259 and nothing else, except for lone
/// surrogates in escapes, numbers beyond the range of a double as serde_json computes it, and
/// nesting beyond `json_depth_limit`, which are faults. Demands valid UTF-8. Needs no memory but
/// for strings with escapes, the longest one at a time, and a copy of the text where it holds an
/// exponent of ten digits or more.
[[nodiscard]] std::optional<json_fault> read_json(std::string_view text, json_listener& listener);

}  // namespace headrace::detail
