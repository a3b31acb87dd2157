#include "storage/aws_profile_keys.hpp"

#include "storage/aws_container.hpp"
#include "storage/aws_environment.hpp"
#include "storage/aws_instance.hpp"
#include "storage/aws_process.hpp"
#include "storage/aws_sso.hpp"
#include "storage/aws_token_service.hpp"
#include "storage/content_range.hpp"
#include "storage/text.hpp"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

namespace headrace {
namespace {

/// Roles that lead to each other; AWS itself knows no use for more than two.
constexpr std::size_t most_roles = 8;

failure<error> refused(const std::string& message) {
  return failure{error(errc::invalid_request, message)};
}

std::string title(const aws_profiles& files, const std::string& name) {
  return "profile '" + detail::printable(name, 64) + "' in " + files.profile(name)->file;
}

result<std::optional<aws_keys>> written_keys(const aws_section& profile, const std::string& about) {
  aws_credentials written{.access_key_id = profile.value("aws_access_key_id"),
                          .secret_access_key = profile.value("aws_secret_access_key"),
                          .session_token = profile.value("aws_session_token")};
  if (written.session_token.empty()) written.session_token = profile.value("aws_security_token");
  if (written.access_key_id.empty() && written.secret_access_key.empty())
    return std::optional<aws_keys>();
  if (written.secret_access_key.empty())
    return refused(about + " has aws_access_key_id, but no aws_secret_access_key");
  if (written.access_key_id.empty())
    return refused(about + " has aws_secret_access_key, but no aws_access_key_id");
  for (const auto* const part :
       {&written.access_key_id, &written.secret_access_key, &written.session_token}) {
    if (!detail::all(*part, detail::is_visible)) {
      return refused(about +
                     ": a key holds a space, a line end or another character that keys do "
                     "not have");
    }
  }
  return std::optional<aws_keys>(
      aws_keys{.credentials = std::move(written), .source = about, .expires = {}, .looked_at = {}});
}

result<aws_role> role_of(const aws_section& profile, const std::string& about) {
  aws_role role{.arn = profile.value("role_arn"),
                .session_name = profile.value("role_session_name"),
                .external_id = profile.value("external_id"),
                .duration = 0,
                .told_by = about};
  if (const auto duration = profile.value("duration_seconds"); !duration.empty()) {
    const auto seconds = parse_decimal(duration);
    if (!seconds || *seconds < 900 || *seconds > 43'200)
      return refused(about + ": duration_seconds is no number from 900 to 43200");
    role.duration = static_cast<unsigned>(*seconds);
  }
  return role;
}

/// Keys of this process rather than of a profile.
task<found_aws_keys> keys_of_source(aws_search search, std::string source, std::string about) {
  if (source == "Environment") {
    auto keys = keys_of_variables(search.variable);
    co_return keys;
  }
  if (source == "EcsContainer") {
    auto keys = co_await keys_of_container(search, aws_container_agent());
    co_return keys;
  }
  if (source == "Ec2InstanceMetadata") {
    auto asked = co_await keys_of_instance(search);
    if (!asked) co_return failure{asked.error()};
    if (!asked->keys) {
      co_return failure{
          error(errc::access_denied, about +
                                         ": credential_source is Ec2InstanceMetadata, and the "
                                         "instance metadata service has no keys: " +
                                         asked->nothing)};
    }
    co_return std::move(asked->keys);
  }
  co_return refused(about +
                    ": credential_source is none of Environment, EcsContainer and "
                    "Ec2InstanceMetadata");
}

/// What a profile says besides a role that has a source.
task<found_aws_keys> own_keys(aws_search search, const aws_profiles& files, std::string name) {
  const aws_section& profile = *files.profile(name);
  const std::string about = title(files, name);
  if (profile.has("role_arn") && profile.has("web_identity_token_file")) {
    auto role = role_of(profile, about);
    if (!role) co_return failure{role.error()};
    auto file = expand_home(profile.value("web_identity_token_file"), search.variable);
    auto keys = co_await assume_role_with_web_identity(search, std::move(*role), std::move(file));
    if (!keys) co_return failure{keys.error()};
    co_return std::optional<aws_keys>(std::move(*keys));
  }
  if (profile.has("web_identity_token_file"))
    co_return refused(about + " has web_identity_token_file, but no role_arn");
  if (uses_sso(profile)) {
    auto keys = co_await keys_of_sso(search, files, std::move(name));
    if (!keys) co_return failure{keys.error()};
    co_return std::optional<aws_keys>(std::move(*keys));
  }
  auto written = written_keys(profile, about);
  if (!written || *written) co_return written;
  if (const auto command = profile.value("credential_process"); !command.empty()) {
    auto keys = co_await keys_of_process(search, command, about);
    if (!keys) co_return failure{keys.error()};
    co_return std::optional<aws_keys>(std::move(*keys));
  }
  co_return std::optional<aws_keys>();
}

/// The profiles whose roles are taken on, the last one first, and where their keys come from.
struct role_chain {
  std::vector<std::string> roles;
  std::string profile;  ///< Whose own keys begin it; empty: `source`.
  std::string source;   ///< A `credential_source`.
};

result<role_chain> chain_of(const aws_profiles& files, const std::string& name) {
  role_chain chain{.roles = {}, .profile = name, .source = {}};
  for (;;) {
    const std::string current = chain.profile;
    const aws_section& profile = *files.profile(current);
    const std::string about = title(files, current);
    if (!profile.has("role_arn") || profile.has("web_identity_token_file")) return chain;
    const auto from = profile.value("source_profile");
    const auto source = profile.value("credential_source");
    if (profile.has("mfa_serial")) {
      return failure{
          error(errc::unsupported,
                about +
                    " wants a code of an MFA device (mfa_serial), and nobody can be asked for one: "
                    "run 'aws configure export-credentials --profile " +
                    detail::printable(current, 64) +
                    " --format env' and set the variables that it prints")};
    }
    if (!from.empty() && !source.empty()) {
      return refused(about + " has source_profile and credential_source, which exclude each other");
    }
    if (from.empty() && source.empty())
      return refused(about + " has role_arn, but neither source_profile nor credential_source");
    chain.roles.push_back(current);
    if (!source.empty()) {
      chain.profile.clear();
      chain.source = source;
      return chain;
    }
    if (files.profile(from) == nullptr) {
      return refused(about + " names the source_profile '" + detail::printable(from, 64) +
                     "', which is not in " + files.files());
    }
    chain.profile = from;
    // A profile may take on a role with keys that stand next to it.
    if (from == current && profile.has("aws_access_key_id")) return chain;
    if (std::find(chain.roles.begin(), chain.roles.end(), from) != chain.roles.end())
      return refused(about + " names a source_profile that leads back to itself");
    if (chain.roles.size() == most_roles)
      return refused(about + ": more than 8 roles lead to each other");
  }
}

}  // namespace

task<found_aws_keys> keys_of_profile(aws_search search, const aws_profiles& files,
                                     std::string name) {
  auto chain = chain_of(files, name);
  if (!chain) co_return failure{chain.error()};
  const std::string about =
      chain->roles.empty() ? std::string() : title(files, chain->roles.back());
  auto asking = chain->profile.empty() ? keys_of_source(search, chain->source, about)
                                       : own_keys(search, files, chain->profile);
  auto found = co_await std::move(asking);
  if (!found || chain->roles.empty()) co_return found;
  if (!*found) {
    if (chain->profile.empty())
      co_return refused(about + ": credential_source is " + chain->source + ", which has no keys");
    co_return refused(title(files, chain->profile) + " has no keys, and " + about +
                      " names it as its source_profile");
  }
  aws_keys keys = std::move(**found);
  for (auto role = chain->roles.rbegin(); role != chain->roles.rend(); ++role) {
    auto wanted = role_of(*files.profile(*role), title(files, *role));
    if (!wanted) co_return failure{wanted.error()};
    auto next = co_await assume_role(search, std::move(*wanted), std::move(keys));
    if (!next) co_return failure{next.error()};
    keys = std::move(*next);
  }
  co_return std::optional<aws_keys>(std::move(keys));
}

}  // namespace headrace
