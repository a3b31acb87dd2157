#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace headrace {

/// The version of an object, as HTTP names it.
struct entity_tag {
  std::string quoted;  ///< With its quotes and without `W/`.
  bool weak = false;   ///< Equal weak tags promise equal meaning, not equal bytes.

  /// As a header field carries it.
  [[nodiscard]] std::string text() const { return weak ? "W/" + quoted : quoted; }

  friend bool operator==(const entity_tag&, const entity_tag&) = default;
};

/// Reads `"…"` or `W/"…"` (RFC 9110, 8.8.3). Nothing for everything else, a tag without quotes
/// included.
[[nodiscard]] std::optional<entity_tag> parse_entity_tag(std::string_view text);

}  // namespace headrace
