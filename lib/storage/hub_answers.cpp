#include "storage/hub_answers.hpp"

#include "storage/hub_address.hpp"
#include "storage/json_answer.hpp"
#include "storage/text.hpp"

#include <boost/json/array.hpp>

#include <utility>

namespace headrace {
namespace {

failure<error> broken(const char* what) {
  return failure{
      error(errc::protocol_error,
            std::string("the answer is not the Hub's (is HF_ENDPOINT right?): ") + what)};
}

}  // namespace

result<std::string> parse_hub_commit(std::string_view body) {
  const auto told = detail::parse_json_object(body);
  if (!told) return broken("no JSON object");
  std::string commit = detail::string_of(*told, "sha");
  if (!is_commit(commit)) return broken("it names no commit");
  return commit;
}

result<std::vector<hub_file>> parse_hub_tree(std::string_view body) {
  const auto told = detail::parse_json(body);
  if (!told || !told->is_array()) return broken("a listing that is no JSON array");
  const auto& entries = told->get_array();
  if (entries.size() > max_hub_page) return broken("more than 10,000 entries in one page");
  std::vector<hub_file> files;
  for (const auto& entry : entries) {
    const auto* const object = entry.if_object();
    if (object == nullptr) return broken("an entry that is no JSON object");
    if (detail::string_of(*object, "type") != "file") continue;
    hub_file file{.path = detail::string_of(*object, "path")};
    const auto size = detail::integer_of(*object, "size");
    if (file.path.empty() || !size) return broken("a file without a path or a size");
    file.size = *size;
    files.push_back(std::move(file));
  }
  return files;
}

std::optional<std::string> next_link(std::string_view field) {
  // `<target>; rel="next", <target>; rel="last"`: a target holds no `>`.
  for (;;) {
    const auto begin = field.find('<');
    if (begin == std::string_view::npos) return std::nullopt;
    const auto end = field.find('>', begin);
    if (end == std::string_view::npos) return std::nullopt;
    const auto target = field.substr(begin + 1, end - begin - 1);
    field.remove_prefix(end + 1);
    auto parameters = field.substr(0, field.find('<'));
    while (!parameters.empty()) {
      const auto stop = parameters.find_first_of(";,");
      const auto parameter = detail::trimmed(parameters.substr(0, stop));
      parameters =
          stop == std::string_view::npos ? std::string_view() : parameters.substr(stop + 1);
      const auto equals = parameter.find('=');
      if (equals == std::string_view::npos) continue;
      auto value = detail::trimmed(parameter.substr(equals + 1));
      if (value.size() >= 2 && value.front() == '"' && value.back() == '"')
        value = value.substr(1, value.size() - 2);
      if (detail::same_name(detail::trimmed(parameter.substr(0, equals)), "rel") &&
          detail::same_name(value, "next")) {
        return std::string(target);
      }
    }
  }
}

}  // namespace headrace
