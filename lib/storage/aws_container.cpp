#include "storage/aws_container.hpp"

#include "storage/aws_key_answer.hpp"
#include "storage/json_answer.hpp"
#include "storage/service_place.hpp"
#include "storage/service_request.hpp"
#include "storage/small_file.hpp"
#include "storage/text.hpp"

#include <headrace/base/uri.hpp>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

namespace headrace {
namespace {

constexpr const char* relative_variable = "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI";
constexpr const char* full_variable = "AWS_CONTAINER_CREDENTIALS_FULL_URI";
constexpr const char* token_variable = "AWS_CONTAINER_AUTHORIZATION_TOKEN";
constexpr const char* token_file_variable = "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE";

failure<error> refused(const std::string& message) {
  return failure{error(errc::invalid_request, message)};
}

/// What ECS and EKS have agents listen on; nobody else's packets get there.
bool may_be_asked(const http_origin& origin) {
  constexpr std::array<std::string_view, 3> agents{"169.254.170.2", "169.254.170.23",
                                                   "fd00:ec2::23"};
  return keeps_secrets(origin) ||
         std::find(agents.begin(), agents.end(), std::string_view(origin.host)) != agents.end();
}

result<service_place> place_of(const named_value& relative, const named_value& full,
                               http_origin agent) {
  if (!relative.value.empty()) {
    if (relative.value.front() != '/' || !detail::all(relative.value, detail::is_visible))
      return refused(std::string(relative_variable) +
                     " is no path: expected one that begins with /");
    const auto mark = relative.value.find('?');
    return service_place{std::move(agent), relative.value.substr(0, mark),
                         mark == std::string::npos ? "" : relative.value.substr(mark + 1)};
  }
  auto place = parse_service_place(full.value, full_variable);
  // To the letter: a `/` at its end may count.
  if (const auto whole = uri::parse(full.value); place && whole) place->path = whole->path;
  if (place && !may_be_asked(place->origin)) {
    return refused(
        std::string(full_variable) +
        " names a host that must not be asked without TLS: expected https, this machine, "
        "169.254.170.2, 169.254.170.23 or [fd00:ec2::23]");
  }
  return place;
}

/// The value of `Authorization`; empty where there is to be none.
task<result<std::string>> token_of(aws_search search) {
  const auto file = first_of(search.variable, {token_file_variable});
  std::string token;
  std::string from = token_variable;
  if (!file.value.empty()) {
    if (!detail::can_be_path(file.value)) {
      co_return refused(std::string(token_file_variable) +
                        ": expected the path of the token's file, not a token");
    }
    from = std::string(token_file_variable) + ": " + file.value;
    auto text = co_await read_small_file(search.loop, file.value);
    if (!text) {
      const error& failed = text.error();
      if (failed.kind() == errc::cancelled) co_return failure{failed};
      co_return failure{
          error(failed.kind(), std::string(token_file_variable) + ": " + failed.reason())};
    }
    if (!*text) co_return refused(from + " is not there");
    token = std::move(**text);
    while (!token.empty() && (token.back() == '\n' || token.back() == '\r')) token.pop_back();
    if (token.empty()) co_return refused(from + " is empty: expected a token");
  } else {
    token = first_of(search.variable, {token_variable}).value;
  }
  const bool sendable =
      detail::all(token, [](char c) { return detail::is_visible(c) || c == ' '; });
  if (!sendable) co_return refused(from + " holds a character that tokens do not have");
  co_return token;
}

}  // namespace

http_origin aws_container_agent() { return {"http", "169.254.170.2", 80}; }

task<found_aws_keys> keys_of_container(aws_search search, http_origin agent) {
  const auto relative = first_of(search.variable, {relative_variable});
  const auto full = first_of(search.variable, {full_variable});
  if (relative.value.empty() && full.value.empty()) co_return std::optional<aws_keys>();
  const std::string variable = relative.value.empty() ? full_variable : relative_variable;
  auto place = place_of(relative, full, std::move(agent));
  if (!place) co_return failure{place.error()};
  auto token = co_await token_of(search);
  if (!token) co_return failure{token.error()};

  const std::string service = "the container's credentials at " + place->origin.host_field();
  // Beside the container no proxy stands between.
  service_request wanted{
      .asked = {.route = {place->origin, place->origin.is_secure() ? search.network : nullptr},
                .request = {}},
      .about = service + " (" + variable + ")",
      .connect_limit = std::chrono::seconds(2)};
  wanted.asked.request.target = place->target();
  wanted.asked.request.host = place->origin.host_field();
  wanted.asked.request.fields = {{"Accept", "application/json"}};
  if (!token->empty()) wanted.asked.request.fields.emplace_back("Authorization", *token);
  auto answer = co_await ask_service(search.loop, std::move(wanted));
  if (!answer) co_return failure{answer.error()};
  const auto members = detail::parse_json_object(answer->body);
  if (answer->head.status() != 200) {
    std::string said;
    if (members) {
      said = detail::printable(detail::string_of(*members, "code"), 64);
      const auto message = detail::printable(detail::string_of(*members, "message"), 256);
      if (!message.empty()) said += (said.empty() ? "" : ": ") + message;
    }
    co_return failure{refused_keys(*answer, variable + ": " + service + " are refused", said,
                                   {*token},
                                   "check the task's or pod's role, and " +
                                       std::string(token_file_variable) + " or " + token_variable)};
  }
  const std::string about = service + " (" + variable + ")";
  if (!members) co_return failure{error(errc::protocol_error, about + ": the answer is no JSON")};
  auto keys = keys_of_json(*members, {}, about);
  if (!keys) co_return failure{keys.error()};
  co_return std::optional<aws_keys>(std::move(*keys));
}

}  // namespace headrace
