#include "storage/aws_token_service.hpp"

#include "storage/aws_endpoints.hpp"
#include "storage/aws_key_answer.hpp"
#include "storage/percent.hpp"
#include "storage/s3_answers.hpp"
#include "storage/service_place.hpp"
#include "storage/service_request.hpp"
#include "storage/sigv4.hpp"
#include "storage/small_file.hpp"
#include "storage/text.hpp"
#include "storage/xml_answer.hpp"

#include <headrace/base/sizes.hpp>

#include <chrono>
#include <cstddef>
#include <optional>
#include <utility>

namespace headrace {
namespace {

constexpr std::size_t longest_token = 20'000;  // STS takes no longer ones
constexpr std::string_view signing_region_of_all = "us-east-1";

std::string form_value(std::string_view text) { return percent_encode(text, slash::encoded); }

std::string form_of(const char* action, const aws_role& role, const clock& time) {
  std::string name = role.session_name;
  if (name.empty()) {
    const auto now = std::chrono::floor<std::chrono::seconds>(time.wall());
    name = "headrace-" + std::to_string(now.time_since_epoch().count());
  }
  std::string form = std::string("Action=") + action +
                     "&Version=2011-06-15&RoleArn=" + form_value(role.arn) +
                     "&RoleSessionName=" + form_value(name);
  if (role.duration != 0) form += "&DurationSeconds=" + std::to_string(role.duration);
  return form;
}

result<service_place> place_of(const aws_search& search) {
  if (!search.sts_endpoint.empty())
    return parse_service_place(search.sts_endpoint,
                               "the endpoint of STS (AWS_ENDPOINT_URL_STS, AWS_ENDPOINT_URL or the "
                               "profile's endpoint_url)");
  if (!search.region.empty() && !detail::is_region_label(search.region)) {
    return failure{error(errc::invalid_request,
                         "the region is none of AWS, so that STS cannot be asked there: set "
                         "AWS_REGION to one such as eu-west-1")};
  }
  service_place place;
  place.origin = {"https", aws_service_host("sts", search.region), 443};
  return place;
}

std::string name_of(const service_place& place) { return "STS at " + place.origin.host_field(); }

/// Posts `form`, signed where there is something to sign with.
task<result<service_answer>> post(aws_search search, service_place place, std::string form,
                                  std::optional<aws_credentials> signing) {
  service_request wanted{.asked = {.route = {place.origin, search.network}, .request = {}},
                         .about = name_of(place)};
  http_request& request = wanted.asked.request;
  request.method = "POST";
  request.target = place.path.empty() ? "/" : place.path;
  request.host = place.origin.host_field();
  request.body = std::move(form);
  request.fields = {{"Content-Type", "application/x-www-form-urlencoded"}};
  if (signing) {
    sigv4_signer signer;
    const std::string hash = sha256_of(request.body);
    const signable_request signable{
        .method = request.method,
        .host = request.host,
        .path = request.target,
        .headers = request.fields,
        .payload_hash = hash,
        .region = search.region.empty() ? signing_region_of_all : std::string_view(search.region),
        .service = "sts"};
    for (auto& field : signer.sign(signable, *signing, search.time.wall()))
      request.fields.push_back(std::move(field));
  }
  auto answer = co_await ask_service(search.loop, std::move(wanted));
  co_return answer;
}

std::string said_by(const service_answer& answer) {
  const auto said = parse_s3_error(answer.body);
  if (!said) return {};
  return said->code + (said->code.empty() || said->message.empty() ? "" : ": ") + said->message;
}

std::string with_role(const aws_role& role) {
  return role.told_by + ": the role " + detail::printable(role.arn, 256);
}

}  // namespace

result<aws_keys> parse_sts_keys(std::string_view body, const std::string& about) {
  pugi::xml_document document;
  const auto root = body.size() <= 256_KiB ? detail::root_of(document, body) : pugi::xml_node();
  for (const auto& result : root) {
    if (!detail::local_name(result).ends_with("Result")) continue;
    for (const auto& keys : result) {
      if (detail::local_name(keys) != "Credentials") continue;
      const auto expires = detail::child_of(keys, "Expiration");
      return keys_of_parts({.access_key_id = detail::child_of(keys, "AccessKeyId").text,
                            .secret_access_key = detail::child_of(keys, "SecretAccessKey").text,
                            .session_token = detail::child_of(keys, "SessionToken").text},
                           expires.text, about);
    }
  }
  return failure{error(errc::protocol_error, about + " has answered without keys")};
}

task<result<aws_keys>> assume_role(aws_search search, aws_role role, aws_keys base) {
  auto place = place_of(search);
  if (!place) co_return failure{place.error()};
  const std::string service = name_of(*place);
  std::string form = form_of("AssumeRole", role, search.time);
  if (!role.external_id.empty()) form += "&ExternalId=" + form_value(role.external_id);
  auto answer = co_await post(search, *place, std::move(form), base.credentials);
  if (!answer) co_return failure{answer.error()};
  if (answer->head.status() != 200) {
    co_return failure{
        refused_keys(*answer, service + " refuses " + with_role(role), said_by(*answer),
                     {base.credentials->secret_access_key, base.credentials->session_token},
                     "check the role's trust policy, and that " + base.source + " may assume it")};
  }
  auto keys = parse_sts_keys(answer->body, service);
  if (keys) keys->source = with_role(role) + ", assumed with " + base.source;
  co_return keys;
}

task<result<aws_keys>> assume_role_with_web_identity(aws_search search, aws_role role,
                                                     std::string token_file) {
  auto place = place_of(search);
  if (!place) co_return failure{place.error()};
  const std::string service = name_of(*place);
  if (!detail::can_be_path(token_file)) {
    co_return failure{error(errc::invalid_request,
                            role.told_by + ": expected the path of the token's file, not a token")};
  }
  auto text = co_await read_small_file(search.loop, token_file);
  if (!text) {
    const error& failed = text.error();
    if (failed.kind() == errc::cancelled) co_return failure{failed};
    co_return failure{error(failed.kind(), role.told_by + ": " + failed.reason())};
  }
  if (!*text) {
    co_return failure{error(errc::invalid_request,
                            role.told_by + ": the token's file " + token_file + " is not there")};
  }
  std::string token = std::move(**text);
  while (!token.empty() && (detail::is_control(token.back()) || token.back() == ' '))
    token.pop_back();
  if (token.empty() || token.size() > longest_token || !detail::all(token, detail::is_visible)) {
    co_return failure{error(errc::invalid_request, role.told_by + ": " + token_file +
                                                       " holds no token: expected one line")};
  }
  const std::string form = form_of("AssumeRoleWithWebIdentity", role, search.time) +
                           "&WebIdentityToken=" + form_value(token);
  auto answer = co_await post(search, *place, form, std::nullopt);
  if (!answer) co_return failure{answer.error()};
  if (answer->head.status() != 200) {
    co_return failure{refused_keys(
        *answer, service + " refuses " + with_role(role), said_by(*answer), {token},
        "check the role's trust policy, and whether the token in " + token_file + " has run out")};
  }
  auto keys = parse_sts_keys(answer->body, service);
  if (keys) keys->source = with_role(role) + ", assumed with the token in " + token_file;
  co_return keys;
}

task<found_aws_keys> keys_of_web_identity(aws_search search) {
  const auto file = first_of(search.variable, {"AWS_WEB_IDENTITY_TOKEN_FILE"});
  const auto arn = first_of(search.variable, {"AWS_ROLE_ARN"});
  if (file.value.empty()) co_return std::optional<aws_keys>();
  if (arn.value.empty()) {
    co_return failure{error(errc::invalid_request,
                            "AWS_WEB_IDENTITY_TOKEN_FILE is set, but AWS_ROLE_ARN is not: set both "
                            "or neither")};
  }
  aws_role role{.arn = arn.value,
                .session_name = first_of(search.variable, {"AWS_ROLE_SESSION_NAME"}).value,
                .told_by = "AWS_WEB_IDENTITY_TOKEN_FILE"};
  auto keys = co_await assume_role_with_web_identity(search, std::move(role), file.value);
  if (!keys) co_return failure{keys.error()};
  co_return std::optional<aws_keys>(std::move(*keys));
}

}  // namespace headrace
