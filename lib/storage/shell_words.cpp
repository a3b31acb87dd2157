#include "storage/shell_words.hpp"

#include <cstddef>
#include <utility>

namespace headrace {

std::optional<std::vector<std::string>> split_shell_words(std::string_view text) {
  constexpr std::string_view blanks = " \t\r\n";
  std::vector<std::string> words;
  std::string word;
  bool inside = false;  // of a word, which may be empty: ''
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (blanks.find(c) != std::string_view::npos) {
      if (inside) words.push_back(std::exchange(word, {}));
      inside = false;
      continue;
    }
    inside = true;
    if (c == '\\') {
      if (++i == text.size()) return std::nullopt;
      word += text[i];
    } else if (c == '\'') {
      const auto end = text.find('\'', i + 1);
      if (end == std::string_view::npos) return std::nullopt;
      word += text.substr(i + 1, end - i - 1);
      i = end;
    } else if (c == '"') {
      for (++i; i < text.size() && text[i] != '"'; ++i) {
        const bool escapes =
            text[i] == '\\' && i + 1 < text.size() && (text[i + 1] == '"' || text[i + 1] == '\\');
        if (escapes) ++i;
        word += text[i];
      }
      if (i >= text.size()) return std::nullopt;
    } else {
      word += c;
    }
  }
  if (inside) words.push_back(std::move(word));
  return words;
}

}  // namespace headrace
