#include "storage/entity_tag.hpp"

#include "storage/text.hpp"

namespace headrace {

std::optional<entity_tag> parse_entity_tag(std::string_view text) {
  entity_tag tag;
  text = detail::trimmed(text);
  if (text.substr(0, 2) == "W/") {
    tag.weak = true;
    text.remove_prefix(2);
  }
  if (text.size() < 2 || text.front() != '"' || text.back() != '"') return std::nullopt;
  const auto opaque = text.substr(1, text.size() - 2);
  const bool clean = detail::all(opaque, [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte > 0x20 && byte != '"' && byte != 0x7f;
  });
  if (!clean) return std::nullopt;
  tag.quoted = text;
  return tag;
}

}  // namespace headrace
