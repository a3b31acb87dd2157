#include "storage/aws_sso.hpp"

#include "storage/aws_endpoints.hpp"
#include "storage/aws_key_answer.hpp"
#include "storage/json_answer.hpp"
#include "storage/percent.hpp"
#include "storage/rfc3339.hpp"
#include "storage/service_place.hpp"
#include "storage/service_request.hpp"
#include "storage/small_file.hpp"
#include "storage/text.hpp"

#include <headrace/base/assert.hpp>

#include <openssl/evp.h>

#include <array>
#include <optional>
#include <utility>

namespace headrace {
namespace {

failure<error> refused(const std::string& message) {
  return failure{error(errc::invalid_request, message)};
}

struct sso_settings {
  std::string cache_key;  ///< The session's name, or the start URL.
  std::string region;
  std::string account;
  std::string role;
  std::string told_by;
};

result<sso_settings> settings_of(const aws_profiles& files, const std::string& name) {
  const aws_section& profile = *files.profile(name);
  sso_settings settings{
      .cache_key = {},
      .region = profile.value("sso_region"),
      .account = profile.value("sso_account_id"),
      .role = profile.value("sso_role_name"),
      .told_by = "profile '" + detail::printable(name, 64) + "' in " + profile.file};
  settings.cache_key = profile.value("sso_start_url");
  if (const auto session = profile.value("sso_session"); !session.empty()) {
    const auto found = files.sso_sessions.find(session);
    if (found == files.sso_sessions.end()) {
      return refused(settings.told_by + " names the sso_session '" +
                     detail::printable(session, 64) + "', and there is no section [sso-session " +
                     detail::printable(session, 64) + "]");
    }
    settings.cache_key = session;
    settings.region = found->second.value("sso_region");
  }
  const std::array<std::pair<const char*, const std::string*>, 3> needed{
      {{"sso_region", &settings.region},
       {"sso_account_id", &settings.account},
       {"sso_role_name", &settings.role}}};
  for (const auto& [key, value] : needed) {
    if (value->empty()) return refused(settings.told_by + " logs in by SSO and lacks " + key);
  }
  if (!detail::is_region_label(settings.region))
    return refused(settings.told_by + ": sso_region is none of AWS");
  return settings;
}

/// Old tools write `2020-06-17T12:34:56UTC`.
std::optional<std::chrono::sys_seconds> time_of(std::string text) {
  if (text.ends_with("UTC")) text.replace(text.size() - 3, 3, "Z");
  return parse_rfc3339(text);
}

}  // namespace

bool uses_sso(const aws_section& profile) {
  return (profile.has("sso_session") || profile.has("sso_start_url")) &&
         (profile.has("sso_account_id") || profile.has("sso_role_name"));
}

std::string sso_cache_name(const std::string& session_or_url) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned size = 0;
  HEADRACE_ASSERT(EVP_Digest(session_or_url.data(), session_or_url.size(), digest.data(), &size,
                             EVP_sha1(), nullptr) == 1);
  constexpr std::string_view digits = "0123456789abcdef";
  std::string name;
  for (unsigned i = 0; i < size; ++i) {
    name += digits[digest.at(i) >> 4];
    name += digits[digest.at(i) & 15];
  }
  return name + ".json";
}

task<result<aws_keys>> keys_of_sso(aws_search search, const aws_profiles& files, std::string name) {
  const auto settings = settings_of(files, name);
  if (!settings) co_return failure{settings.error()};
  const std::string log_in =
      "run 'aws sso login" +
      (name == "default" ? std::string() : " --profile " + detail::printable(name, 64)) + "'";
  const std::string file =
      expand_home("~/.aws/sso/cache/" + sso_cache_name(settings->cache_key), search.variable);
  if (file.empty())
    co_return refused(settings->told_by + ": HOME is not set, so that there is no cached login");
  auto text = co_await read_small_file(search.loop, file);
  if (!text) {
    const error& failed = text.error();
    if (failed.kind() == errc::cancelled) co_return failure{failed};
    co_return failure{error(failed.kind(), settings->told_by + ": " + failed.reason())};
  }
  const auto denied = [&](const std::string& why) {
    return failure{error(errc::access_denied, settings->told_by + ": " + why + ": " + log_in)};
  };
  if (!*text) co_return denied("nobody is logged in");
  const auto cached = detail::parse_json_object(**text);
  const auto token = cached ? detail::string_of(*cached, "accessToken") : std::string();
  const auto expires =
      cached ? time_of(detail::string_of(*cached, "expiresAt")) : time_of(std::string());
  if (token.empty() || token.size() > 16384 || !detail::all(token, detail::is_visible) || !expires)
    co_return denied("the cached login in " + file + " cannot be read");
  if (*expires <= search.time.wall()) co_return denied("the login has run out");

  service_place place;
  place.origin = {"https", aws_service_host("portal.sso", settings->region), 443};
  if (!search.sso_endpoint.empty()) {
    auto named = parse_service_place(search.sso_endpoint,
                                     "the endpoint of SSO (AWS_ENDPOINT_URL_SSO, AWS_ENDPOINT_URL "
                                     "or the profile's endpoint_url)");
    if (!named) co_return failure{named.error()};
    place = std::move(*named);
  }
  const std::string service = "IAM Identity Center at " + place.origin.host_field();
  service_request wanted{.asked = {.route = {place.origin, search.network}, .request = {}},
                         .about = service};
  wanted.asked.request.target = place.path + "/federation/credentials?account_id=" +
                                percent_encode(settings->account, slash::encoded) +
                                "&role_name=" + percent_encode(settings->role, slash::encoded);
  wanted.asked.request.host = place.origin.host_field();
  wanted.asked.request.fields = {{"x-amz-sso_bearer_token", token}};
  auto answer = co_await ask_service(search.loop, std::move(wanted));
  if (!answer) co_return failure{answer.error()};
  const auto members = detail::parse_json_object(answer->body);
  if (answer->head.status() == 401) co_return denied(service + " refuses the login");
  if (answer->head.status() != 200) {
    const auto said = members ? detail::string_of(*members, "message") : std::string();
    co_return failure{refused_keys(*answer, service + " refuses the keys of " + settings->told_by,
                                   detail::printable(said, 256), {token},
                                   "check sso_account_id and sso_role_name, or " + log_in)};
  }
  const auto* const inner = members ? detail::object_of(*members, "roleCredentials") : nullptr;
  if (inner == nullptr)
    co_return failure{error(errc::protocol_error, service + " has answered without keys")};
  auto keys = keys_of_json(*inner,
                           {.id = "accessKeyId",
                            .secret = "secretAccessKey",
                            .token = "sessionToken",
                            .expires = "expiration"},
                           service);
  if (keys) keys->source = settings->told_by + ", by SSO";
  co_return keys;
}

}  // namespace headrace
