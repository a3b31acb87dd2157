#include "storage/aws_environment.hpp"

#include "storage/aws_endpoints.hpp"
#include "storage/text.hpp"

#include <array>
#include <functional>
#include <map>
#include <string_view>
#include <utility>

namespace headrace {
namespace {

failure<error> refused(const std::string& message) {
  return failure{error(errc::invalid_request, message)};
}

// The switch that turns signing off; empty where none does.
result<std::string> skips_signature(const variable_lookup& variable) {
  for (const char* name : {"AWS_SKIP_SIGNATURE", "AWS_NO_SIGN_REQUEST", "NO_SIGN_REQUEST"}) {
    auto set = read_switch(first_of(variable, {name}));
    if (!set) return failure{set.error()};
    if (*set) return std::string(name);
  }
  return std::string();
}

// What links of the chain read after the store was made.
constexpr std::array chain_variables{"HOME",
                                     "AWS_ACCESS_KEY_ID",
                                     "AWS_SECRET_ACCESS_KEY",
                                     "AWS_SESSION_TOKEN",
                                     "AWS_REGION",
                                     "AWS_DEFAULT_REGION",
                                     "AWS_CONFIG_FILE",
                                     "AWS_SHARED_CREDENTIALS_FILE",
                                     "AWS_ENDPOINT_URL",
                                     "AWS_ENDPOINT_URL_STS",
                                     "AWS_ENDPOINT_URL_SSO",
                                     "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS",
                                     "AWS_WEB_IDENTITY_TOKEN_FILE",
                                     "AWS_ROLE_ARN",
                                     "AWS_ROLE_SESSION_NAME",
                                     "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
                                     "AWS_CONTAINER_CREDENTIALS_FULL_URI",
                                     "AWS_CONTAINER_AUTHORIZATION_TOKEN",
                                     "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
                                     "AWS_EC2_METADATA_DISABLED",
                                     "AWS_EC2_METADATA_SERVICE_ENDPOINT",
                                     "AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE"};

}  // namespace

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

found_aws_keys keys_of_variables(const variable_lookup& variable) {
  const std::array<named_value, 3> found{first_of(variable, {"AWS_ACCESS_KEY_ID"}),
                                         first_of(variable, {"AWS_SECRET_ACCESS_KEY"}),
                                         first_of(variable, {"AWS_SESSION_TOKEN"})};
  const auto& [id, secret, token] = found;
  if (id.value.empty() && secret.value.empty()) return std::optional<aws_keys>();
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
  return std::optional<aws_keys>(
      aws_keys{.credentials = aws_credentials{id.value, secret.value, token.value},
               .source = "the variables AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
               .expires = {},
               .looked_at = {}});
}

result<bool> ignores_endpoints(const variable_lookup& variable) {
  return read_switch(first_of(variable, {"AWS_IGNORE_CONFIGURED_ENDPOINT_URLS"}));
}

variable_lookup remember_aws_variables(const variable_lookup& variable) {
  std::map<std::string, std::string, std::less<>> remembered;
  for (const char* const name : chain_variables) {
    if (auto value = variable(name)) remembered.emplace(name, *std::move(value));
  }
  return [remembered = std::move(remembered)](const char* name) -> std::optional<std::string> {
    const auto found = remembered.find(name);
    if (found == remembered.end()) return std::nullopt;
    return found->second;
  };
}

result<aws_settings> read_aws_settings(const storage_options& options,
                                       const variable_lookup& variable) {
  if (auto checked = check(options); !checked) return failure{checked.error()};
  aws_settings settings;
  settings.path_style = options.path_style;

  const auto ignored = ignores_endpoints(variable);
  if (!ignored) return failure{ignored.error()};
  settings.ignores_profile_endpoint = *ignored;
  settings.endpoint = options.endpoint;
  if (settings.endpoint.empty() && !*ignored) settings.endpoint = variable_endpoint(variable, "s3");

  if (!options.profile.empty()) {
    settings.profile = {options.profile, "storage.profile"};
  } else if (const auto named = first_of(variable, {"AWS_PROFILE", "AWS_DEFAULT_PROFILE"});
             !named.value.empty()) {
    settings.profile = {named.value, named.name};
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
  if (options.anonymous) {
    settings.anonymous_by = "storage.anonymous";
    return settings;
  }
  if (options.credentials) {
    settings.credentials = options.credentials;
    settings.credentials_by = "storage.credentials";
    return settings;
  }
  auto skips = skips_signature(variable);
  if (!skips) return failure{skips.error()};
  settings.anonymous = !skips->empty();
  settings.anonymous_by = *std::move(skips);
  if (settings.anonymous || !options.profile.empty()) return settings;

  auto keys = keys_of_variables(variable);
  if (!keys) return failure{keys.error()};
  if (*keys) {
    settings.credentials = std::move((*keys)->credentials);
    settings.credentials_by = std::move((*keys)->source);
  }
  return settings;
}

}  // namespace headrace
