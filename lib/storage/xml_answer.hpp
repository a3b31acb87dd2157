#pragma once

#include <pugixml.hpp>

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

/// XML as stores answer it, and what of it may stand in a message. What a peer sends is never
/// trusted: no document types, no entities of its own, bounded depth and number of elements.
namespace headrace::detail {

/// The document's element, where there is exactly one and nothing in the document is deeper than
/// stores' answers are. Null for everything else. `body` is bounded by the caller.
[[nodiscard]] pugi::xml_node root_of(pugi::xml_document& document, std::string_view body);

/// The name without the prefix of its namespace.
[[nodiscard]] std::string_view local_name(const pugi::xml_node& node);

/// The text of an element that holds nothing else; nothing where it holds elements.
[[nodiscard]] std::optional<std::string> text_of(const pugi::xml_node& element);

/// The one child of that name. Two of them: neither, since readers would disagree about which
/// counts.
struct child_text {
  bool present = false;
  bool right = true;
  std::string text;
};
[[nodiscard]] child_text child_of(const pugi::xml_node& parent, std::string_view name);

/// Fit for one line of a message: no control characters (those of C1 included), valid UTF-8, not
/// longer than `most` bytes.
[[nodiscard]] std::string for_message(std::string text, std::size_t most);

/// A code or an id, where it looks like one: visible ASCII, at most `most` bytes. Empty otherwise.
[[nodiscard]] std::string if_visible(std::string text, std::size_t most);

}  // namespace headrace::detail
