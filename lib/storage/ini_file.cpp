#include "storage/ini_file.hpp"

#include "storage/text.hpp"

#include <cstddef>
#include <limits>
#include <set>

namespace headrace {
namespace {

constexpr std::string_view blanks = " \t\r\f\v";

std::string_view stripped(std::string_view text) {
  const auto begin = text.find_first_not_of(blanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(blanks) - begin + 1);
}

}  // namespace

result<std::vector<ini_section>> parse_ini(std::string_view text, const std::string& file) {
  std::vector<ini_section> sections;
  std::set<std::string> names;  // of sections, then of the section's values
  std::set<std::string> keys;
  std::size_t number = 0;
  std::size_t indent = std::numeric_limits<std::size_t>::max();
  const auto refused = [&](const char* why) {
    return failure{
        error(errc::invalid_request, file + ", line " + std::to_string(number) + ": " + why)};
  };
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);
  while (!text.empty()) {
    ++number;
    const auto end = text.find('\n');
    const auto whole = text.substr(0, end);
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
    const auto line = stripped(whole);
    if (line.empty() || line.front() == '#' || line.front() == ';') continue;
    if (line.find('\0') != std::string_view::npos) return refused("this is no text");

    const std::size_t depth = whole.find_first_not_of(blanks);
    if (depth > indent && !sections.empty() && !sections.back().values.empty()) {
      auto& value = sections.back().values.back().second;
      value += '\n';
      value += line;
      continue;
    }
    indent = depth;
    if (const auto close = line.rfind(']');
        line.front() == '[' && close != std::string_view::npos) {
      std::string name(stripped(line.substr(1, close - 1)));
      if (!names.insert(name).second) return refused("this section is there twice: keep one");
      keys.clear();
      sections.push_back({std::move(name), {}});
      continue;
    }
    if (sections.empty())
      return refused("expected a section, such as [default], before the first value");
    const auto mark = line.find_first_of("=:");
    if (mark == std::string_view::npos || mark == 0) return refused("expected name = value");
    std::string key = detail::lower(stripped(line.substr(0, mark)));
    if (!keys.insert(key).second) return refused("this name is there twice: keep one");
    sections.back().values.emplace_back(std::move(key), stripped(line.substr(mark + 1)));
  }
  return sections;
}

}  // namespace headrace
