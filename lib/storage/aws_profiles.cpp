#include "storage/aws_profiles.hpp"

#include "storage/ini_file.hpp"
#include "storage/shell_words.hpp"
#include "storage/small_file.hpp"
#include "storage/text.hpp"

#include <utility>

namespace headrace {
namespace {

void add_values(aws_section& into, const ini_section& from, const std::string& file) {
  if (into.file != file) into.file += (into.file.empty() ? "" : " and ") + file;
  for (const auto& [name, value] : from.values) {
    if (!value.starts_with('\n')) {
      into.values.insert_or_assign(name, value);
      continue;
    }
    std::string_view rest = value;
    while (!rest.empty()) {
      rest.remove_prefix(1);
      const auto line = rest.substr(0, rest.find('\n'));
      rest.remove_prefix(line.size());
      const auto mark = line.find('=');
      if (mark == std::string_view::npos) continue;
      into.values.insert_or_assign(
          name + "." + detail::lower(detail::trimmed(line.substr(0, mark))),
          std::string(detail::trimmed(line.substr(mark + 1))));
    }
  }
}

}  // namespace

std::string aws_section::value(std::string_view name) const {
  const auto found = values.find(name);
  return found == values.end() ? std::string() : found->second;
}

const aws_section* aws_profiles::profile(std::string_view name) const {
  const auto found = profiles.find(name);
  return found == profiles.end() ? nullptr : &found->second;
}

std::string aws_profiles::files() const {
  if (config_file.empty() && credentials_file.empty()) return "no file, since HOME is not set";
  return config_file + (config_found ? "" : " (not there)") + " and " + credentials_file +
         (credentials_found ? "" : " (not there)");
}

result<void> add_aws_config(aws_profiles& into, std::string_view text) {
  auto sections = parse_ini(text, into.config_file);
  if (!sections) return failure{sections.error()};
  into.config_found = true;
  for (const auto& section : *sections) {
    const auto words = split_shell_words(section.name);
    if (!words) continue;
    if (section.name == "default") {
      add_values(into.profiles["default"], section, into.config_file);
    } else if (words->size() == 2) {
      const std::string& kind = words->front();
      const std::string& name = words->back();
      if (kind == "profile") add_values(into.profiles[name], section, into.config_file);
      if (kind == "sso-session") add_values(into.sso_sessions[name], section, into.config_file);
      if (kind == "services") add_values(into.services[name], section, into.config_file);
    }
  }
  return {};
}

result<void> add_aws_credentials(aws_profiles& into, std::string_view text) {
  auto sections = parse_ini(text, into.credentials_file);
  if (!sections) return failure{sections.error()};
  into.credentials_found = true;
  for (const auto& section : *sections)
    add_values(into.profiles[section.name], section, into.credentials_file);
  return {};
}

std::string expand_home(std::string path, const variable_lookup& variable) {
  if (path != "~" && !path.starts_with("~/")) return path;
  const auto home = first_of(variable, {"HOME"});
  return home.value.empty() ? std::string() : home.value + path.substr(1);
}

task<result<aws_profiles>> read_aws_profiles(storage_loop& loop, variable_lookup variable) {
  aws_profiles found;
  const auto path_of = [&variable](const char* name, const char* usual) {
    auto named = first_of(variable, {name}).value;
    return expand_home(named.empty() ? usual : std::move(named), variable);
  };
  found.config_file = path_of("AWS_CONFIG_FILE", "~/.aws/config");
  found.credentials_file = path_of("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials");
  constexpr std::size_t limit = std::size_t{1} << 20;
  // In this order: what is added later wins.
  if (!found.config_file.empty() && found.config_file != "/dev/null") {
    auto text = co_await read_small_file(loop, found.config_file, limit);
    if (!text) co_return failure{text.error()};
    if (*text) {
      auto added = add_aws_config(found, **text);
      if (!added) co_return failure{added.error()};
    }
  }
  if (!found.credentials_file.empty() && found.credentials_file != "/dev/null") {
    auto text = co_await read_small_file(loop, found.credentials_file, limit);
    if (!text) co_return failure{text.error()};
    if (*text) {
      auto added = add_aws_credentials(found, **text);
      if (!added) co_return failure{added.error()};
    }
  }
  co_return found;
}

result<const aws_section*> choose_profile(const aws_profiles& from,
                                          const aws_profile_choice& wanted) {
  const aws_section* const found = from.profile(wanted.name);
  if (found != nullptr || wanted.named_by.empty()) return found;
  return failure{error(errc::invalid_request, wanted.named_by + " names the profile '" +
                                                  detail::printable(wanted.name, 64) +
                                                  "', which is not in " + from.files())};
}

}  // namespace headrace
