#include "storage/aws_key_answer.hpp"

#include "storage/json_answer.hpp"
#include "storage/rfc3339.hpp"
#include "storage/text.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace headrace {
namespace {

constexpr std::size_t longest_key = 1024;
constexpr std::size_t longest_token = std::size_t{16} * 1024;

bool is_key(std::string_view text, std::size_t most) {
  return text.size() <= most && detail::all(text, detail::is_visible);
}

}  // namespace

result<aws_keys> keys_of_parts(aws_credentials parts, std::string_view expires,
                               const std::string& about) {
  const auto refused = [&about](const char* why) {
    return failure{error(errc::protocol_error, about + why)};
  };
  if (parts.access_key_id.empty() || parts.secret_access_key.empty())
    return refused(" has answered without keys");
  if (!is_key(parts.access_key_id, longest_key) || !is_key(parts.secret_access_key, longest_key) ||
      !is_key(parts.session_token, longest_token)) {
    return refused(" has answered with keys that cannot be sent");
  }
  aws_keys keys;
  keys.credentials = std::move(parts);
  keys.source = about;
  if (!expires.empty()) {
    const auto at = parse_rfc3339(expires);
    if (!at) return refused(" has answered with keys whose expiry is no time");
    keys.expires = *at;
  }
  return keys;
}

result<aws_keys> keys_of_json(const boost::json::object& members, const aws_key_names& names,
                              const std::string& about) {
  auto keys = keys_of_parts({.access_key_id = detail::string_of(members, names.id),
                             .secret_access_key = detail::string_of(members, names.secret),
                             .session_token = detail::string_of(members, names.token)},
                            detail::string_of(members, names.expires), about);
  if (!keys || keys->expires) return keys;
  if (const auto milliseconds = detail::integer_of(members, names.expires)) {
    constexpr std::uint64_t latest = 9'000'000'000'000;  // the year 2255
    if (*milliseconds > latest) {
      return failure{
          error(errc::protocol_error, about + " has answered with keys whose expiry is no time")};
    }
    keys->expires = system_time(std::chrono::milliseconds(*milliseconds));
  }
  return keys;
}

error refused_keys(const service_answer& answer, const std::string& what, std::string said,
                   std::initializer_list<std::string_view> secrets, const std::string& advice) {
  for (const auto secret : secrets) {
    if (secret.size() >= 4 && said.find(secret.substr(0, 64)) != std::string::npos) said.clear();
  }
  return error(answer.head.status() >= 500 ? errc::unavailable : errc::access_denied,
               what + (said.empty() ? "" : " (" + said + ")") + ": " + advice,
               {.peer = answer.peer, .status = answer.head.status()});
}

}  // namespace headrace
