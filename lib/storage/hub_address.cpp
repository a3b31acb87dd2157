#include "storage/hub_address.hpp"

#include "storage/percent.hpp"
#include "storage/text.hpp"

#include <cstddef>
#include <utility>

namespace headrace {
namespace {

constexpr std::string_view expected = ": expected hf://org/repo[@revision][/folder]";

failure<error> refused(const std::string& message, errc kind = errc::invalid_request) {
  return failure{error(kind, message + std::string(expected))};
}

/// The Hub's own rule for organisations and repositories.
bool is_name(std::string_view text) noexcept {
  return !text.empty() && text.size() <= 96 && text.front() != '.' && text.front() != '-' &&
         text.find("..") == std::string_view::npos && detail::all(text, [](char c) {
           return detail::is_alphanumeric(c) || c == '-' || c == '_' || c == '.';
         });
}

/// Where the revision, percent-encoded, ends in `text`, which begins with it.
std::size_t end_of_revision(std::string_view text) noexcept {
  for (const std::string_view special : {"refs/pr/", "refs/convert/"}) {
    if (text.starts_with(special)) return text.find('/', special.size());
  }
  return text.find('/');
}

/// Rules of git for the names of branches, as far as they matter in a URL.
bool is_revision(std::string_view text) noexcept {
  return !text.empty() && text.size() <= 255 && text.front() != '/' && text.back() != '/' &&
         text.find("..") == std::string_view::npos && text.find("//") == std::string_view::npos &&
         detail::all(text, [](char c) { return !detail::is_control(c) && c != ' '; });
}

bool is_folder(std::string_view path) noexcept {
  for (;;) {
    const auto slash = path.find('/');
    const auto part = path.substr(0, slash);
    if (part.empty() || part == "." || part == "..") return false;
    if (slash == std::string_view::npos) return true;
    path.remove_prefix(slash + 1);
  }
}

}  // namespace

bool is_commit(std::string_view text) noexcept {
  return text.size() == 40 &&
         detail::all(text, [](char c) { return detail::is_digit(c) || (c >= 'a' && c <= 'f'); });
}

bool is_hub_repository(std::string_view text) noexcept {
  const auto slash = text.find('/');
  if (slash == std::string_view::npos) return is_name(text);
  return is_name(text.substr(0, slash)) && is_name(text.substr(slash + 1));
}

result<hub_address> parse_hub_address(const uri& location) {
  // `hf://org@revision/…` ends here as well: what stands there may be a secret, so it is not
  // repeated.
  if (!location.user_info.empty())
    return refused("an organisation has no '@' in its name, and keys do not belong into a URI");
  if (location.authority == "datasets" || location.authority == "spaces")
    return refused("datasets and spaces hold no models that headrace reads", errc::unsupported);
  const std::string_view path = location.path;
  const auto end = path.find_first_of("@/");
  const auto name = path.substr(0, end);
  if (name.empty()) return refused("a repository has an organisation and a name");
  hub_address address;
  address.repository = location.authority + "/" + std::string(name);
  if (!is_hub_repository(address.repository))
    return refused("'" + address.repository + "' is no name of a repository");

  std::string_view rest = end == std::string_view::npos ? std::string_view() : path.substr(end);
  if (rest.starts_with('@')) {
    rest.remove_prefix(1);
    const auto stop = end_of_revision(rest);
    auto revision = percent_decode(rest.substr(0, stop));
    if (!revision || !is_revision(*revision)) {
      return refused(
          "no name of a revision after '@' (a '/' in it is written %2F, a '%' is written %25)");
    }
    address.revision = std::move(*revision);
    rest = stop == std::string_view::npos ? std::string_view() : rest.substr(stop);
  }
  while (rest.starts_with('/')) rest.remove_prefix(1);
  while (rest.ends_with('/')) rest.remove_suffix(1);
  if (!rest.empty() && !is_folder(rest))
    return refused("a folder in a repository has no parts that are empty, '.' or '..'");
  address.folder = rest;
  if (rest.ends_with(".safetensors")) {
    const auto slash = rest.rfind('/');
    address.single = slash == std::string_view::npos ? rest : rest.substr(slash + 1);
    address.folder = slash == std::string_view::npos ? std::string_view() : rest.substr(0, slash);
  }
  return address;
}

}  // namespace headrace
