#include "storage/xml_answer.hpp"

#include "storage/text.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace headrace::detail {
namespace {

// A page of 10,000 keys has less than half of these; each costs 64 bytes of tree.
constexpr std::size_t most_tags = 512 * 1024;
constexpr int deepest = 16;

// Declarations of document types are kept to be refused. Text made of blanks alone is kept: keys
// may be.
constexpr unsigned how_to_parse = pugi::parse_cdata | pugi::parse_escapes | pugi::parse_eol |
                                  pugi::parse_ws_pcdata_single | pugi::parse_doctype;

// Whether the text between `&` and `;` stands for one character without a declaration. pugixml
// would keep what it does not know as it is, and end a text at &#0;.
bool is_plain_entity(std::string_view name) {
  for (const auto* known : {"lt", "gt", "amp", "quot", "apos"}) {
    if (name == known) return true;
  }
  if (name.size() < 2 || name.front() != '#') return false;
  name.remove_prefix(1);
  const unsigned base = name.front() == 'x' ? 16 : 10;
  if (base == 16) name.remove_prefix(1);
  if (name.empty() || name.size() > 8) return false;
  std::uint32_t code = 0;
  for (const char c : name) {
    const char low = lower(c);
    const bool letter = low >= 'a' && low <= 'f';
    if (!is_digit(c) && !(letter && base == 16)) return false;
    code = code * base + static_cast<std::uint32_t>(letter ? low - 'a' + 10 : c - '0');
    if (code > 0x10ffff) return false;
  }
  return code != 0 && (code < 0xd800 || code > 0xdfff);
}

// What costs memory, or what pugixml lets pass, is looked for before anything is built.
bool is_plausible(std::string_view body) {
  if (body.find('\0') != std::string_view::npos) return false;
  if (std::count(body.begin(), body.end(), '<') > static_cast<std::ptrdiff_t>(most_tags))
    return false;
  std::size_t at = 0;
  while ((at = body.find_first_of("&<", at)) != std::string_view::npos) {
    if (body.compare(at, 9, "<![CDATA[") == 0) {
      at = body.find("]]>", at);
      if (at == std::string_view::npos) return false;
    } else if (body[at] == '&') {
      const auto end = body.substr(at, 16).find(';');
      if (end == std::string_view::npos || !is_plain_entity(body.substr(at + 1, end - 1)))
        return false;
    }
    ++at;
  }
  return true;
}
bool is_utf8(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i]);
    std::size_t more = 0;
    std::uint32_t least = 0;
    std::uint32_t code = lead;
    if (lead >= 0xf0 && lead < 0xf8) {
      more = 3;
      least = 0x10000;
      code = lead & 7U;
    } else if (lead >= 0xe0 && lead < 0xf0) {
      more = 2;
      least = 0x800;
      code = lead & 15U;
    } else if (lead >= 0xc0 && lead < 0xe0) {
      more = 1;
      least = 0x80;
      code = lead & 31U;
    } else if (lead >= 0x80) {
      return false;
    }
    if (text.size() - i <= more) return false;
    for (std::size_t k = 1; k <= more; ++k) {
      const auto next = static_cast<unsigned char>(text[i + k]);
      if ((next & 0xc0U) != 0x80) return false;
      code = code << 6 | (next & 0x3fU);
    }
    if (code < least || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff)) return false;
    i += more + 1;
  }
  return true;
}

}  // namespace

std::string_view local_name(const pugi::xml_node& node) {
  const std::string_view name = node.name();
  const auto colon = name.find(':');
  return colon == std::string_view::npos ? name : name.substr(colon + 1);
}

pugi::xml_node root_of(pugi::xml_document& document, std::string_view body) {
  if (!is_plausible(body)) return {};
  if (!document.load_buffer(body.data(), body.size(), how_to_parse, pugi::encoding_utf8)) return {};
  pugi::xml_node root;
  for (const auto& node : document) {
    if (node.type() == pugi::node_doctype) return {};
    if (node.type() != pugi::node_element) continue;
    if (root) return {};
    root = node;
  }
  int depth = 1;
  for (auto node = root; node;) {
    if (node.first_child()) {
      if (++depth > deepest) return {};
      node = node.first_child();
      continue;
    }
    while (node != root && !node.next_sibling()) {
      node = node.parent();
      --depth;
    }
    if (node == root) break;
    node = node.next_sibling();
  }
  return root;
}

std::optional<std::string> text_of(const pugi::xml_node& element) {
  std::string text;
  for (const auto& part : element) {
    if (part.type() == pugi::node_element) return std::nullopt;
    text += part.value();
  }
  return text;
}

child_text child_of(const pugi::xml_node& parent, std::string_view name) {
  child_text found;
  for (const auto& child : parent) {
    if (child.type() != pugi::node_element || local_name(child) != name) continue;
    auto text = text_of(child);
    found.right = !found.present && text.has_value();
    found.present = true;
    if (!found.right) return found;
    found.text = *std::move(text);
  }
  return found;
}

std::string for_message(std::string text, std::size_t most) {
  const bool valid = is_utf8(text);
  std::string clean;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const bool c1 =
        byte == 0xc2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xa0;
    if (c1) ++i;
    if (c1 || is_control(text[i])) {
      if (!clean.empty() && clean.back() != ' ') clean += ' ';
    } else {
      clean += valid || byte < 0x80 ? text[i] : '?';
    }
  }
  if (clean.size() > most) {
    clean.resize(most);
    while (!clean.empty() && !is_utf8(clean)) clean.pop_back();
  }
  while (clean.ends_with(' ')) clean.pop_back();
  return clean;
}

std::string if_visible(std::string text, std::size_t most) {
  if (text.size() > most || !all(text, is_visible)) return {};
  return text;
}

}  // namespace headrace::detail
