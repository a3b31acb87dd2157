#include "safetensors/text.hpp"

#include <headrace/base/trace.hpp>

#include <cstring>

namespace headrace::detail {

std::size_t find_invalid_utf8(std::string_view text) noexcept {
  const auto byte = [text](std::size_t at) { return static_cast<unsigned char>(text[at]); };
  const auto continues = [&](std::size_t at, unsigned low = 0x80, unsigned high = 0xbf) {
    return at < text.size() && byte(at) >= low && byte(at) <= high;
  };
  std::size_t at = 0;
  while (at < text.size()) {
    // Headers are nearly all ASCII: eight bytes a step.
    std::uint64_t word = 0;
    while (at + sizeof word <= text.size()) {
      std::memcpy(&word, text.data() + at, sizeof word);
      if ((word & 0x8080808080808080U) != 0) break;
      at += sizeof word;
    }
    if (at == text.size()) break;

    const unsigned lead = byte(at);
    if (lead < 0x80) {
      at += 1;
    } else if (lead >= 0xc2 && lead <= 0xdf) {
      if (!continues(at + 1)) return at;
      at += 2;
    } else if (lead >= 0xe0 && lead <= 0xef) {
      const unsigned low = lead == 0xe0 ? 0xa0 : 0x80;
      const unsigned high = lead == 0xed ? 0x9f : 0xbf;
      if (!continues(at + 1, low, high) || !continues(at + 2)) return at;
      at += 3;
    } else if (lead >= 0xf0 && lead <= 0xf4) {
      const unsigned low = lead == 0xf0 ? 0x90 : 0x80;
      const unsigned high = lead == 0xf4 ? 0x8f : 0xbf;
      if (!continues(at + 1, low, high) || !continues(at + 2) || !continues(at + 3)) return at;
      at += 4;
    } else {
      return at;
    }
  }
  return std::string_view::npos;
}

std::string quote(std::string_view text) {
  constexpr std::size_t longest = 120;
  if (text.size() <= longest) return json_quote(text);
  std::size_t cut = longest;
  while (cut > 0 && (static_cast<unsigned char>(text[cut]) & 0xc0) == 0x80) --cut;
  return json_quote(text.substr(0, cut)) + "…";
}

std::string count(std::uint64_t number, std::string_view noun) {
  std::string text = std::to_string(number);
  text += ' ';
  text += noun;
  if (number != 1) text += 's';
  return text;
}

}  // namespace headrace::detail
