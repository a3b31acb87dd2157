#include "storage/aws_environment.hpp"

#include "storage/text.hpp"

#include <array>
#include <string_view>

namespace headrace {
namespace {

failure<error> refused(const std::string& message) {
  return failure{error(errc::invalid_request, message)};
}

result<bool> read_switch(const named_value& set) {
  constexpr std::array<std::string_view, 4> yes{"1", "true", "yes", "on"};
  constexpr std::array<std::string_view, 4> no{"0", "false", "no", "off"};
  if (set.value.empty()) return false;
  for (std::size_t i = 0; i < yes.size(); ++i) {
    if (detail::same_name(set.value, yes[i])) return true;
    if (detail::same_name(set.value, no[i])) return false;
  }
  return refused(std::string(set.name) + " is neither yes nor no: set it to true or false");
}

result<bool> skips_signature(const variable_lookup& variable) {
  for (const char* name : {"AWS_SKIP_SIGNATURE", "AWS_NO_SIGN_REQUEST", "NO_SIGN_REQUEST"}) {
    auto set = read_switch(first_of(variable, {name}));
    if (!set || *set) return set;
  }
  return false;
}

result<std::optional<aws_credentials>> credentials_of_environment(const variable_lookup& variable) {
  const std::array<named_value, 3> found{first_of(variable, {"AWS_ACCESS_KEY_ID"}),
                                         first_of(variable, {"AWS_SECRET_ACCESS_KEY"}),
                                         first_of(variable, {"AWS_SESSION_TOKEN"})};
  const auto& [id, secret, token] = found;
  if (id.value.empty() && secret.value.empty()) return std::optional<aws_credentials>();
  if (secret.value.empty())
    return refused(
        "AWS_ACCESS_KEY_ID is set, but AWS_SECRET_ACCESS_KEY is not: set both or neither");
  if (id.value.empty())
    return refused(
        "AWS_SECRET_ACCESS_KEY is set, but AWS_ACCESS_KEY_ID is not: set both or neither");
  for (const auto& part : found) {
    if (!detail::all(part.value, detail::is_visible)) {
      return refused(std::string(part.name) +
                     " holds a space, a line end or another character that keys do not have");
    }
  }
  return std::optional<aws_credentials>(aws_credentials{id.value, secret.value, token.value});
}

}  // namespace

result<aws_settings> read_aws_settings(const storage_options& options,
                                       const variable_lookup& variable) {
  if (auto checked = check(options); !checked) return failure{checked.error()};
  aws_settings settings;
  settings.path_style = options.path_style;

  settings.endpoint = options.endpoint;
  if (settings.endpoint.empty()) {
    settings.endpoint = first_of(variable, {"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"}).value;
  }

  settings.region = options.region;
  if (settings.region.empty()) {
    auto region = first_of(variable, {"AWS_REGION", "AWS_DEFAULT_REGION"});
    if (!region.value.empty() && !detail::is_region(region.value)) {
      return refused(std::string(region.name) +
                     " is no name of a region: expected one such as eu-west-1");
    }
    settings.region = std::move(region.value);
  }

  settings.anonymous = options.anonymous;
  if (options.anonymous) return settings;
  if (options.credentials) {
    settings.credentials = options.credentials;
    return settings;
  }
  auto skips = skips_signature(variable);
  if (!skips) return failure{skips.error()};
  settings.anonymous = *skips;
  if (*skips) return settings;

  // The first link of the chain. The next ones (profiles, web identity, container, instance
  // metadata) need I/O: where this one has nothing, the store asks them before it goes on without a
  // signature.
  auto credentials = credentials_of_environment(variable);
  if (!credentials) return failure{credentials.error()};
  settings.credentials = *std::move(credentials);
  return settings;
}

}  // namespace headrace
