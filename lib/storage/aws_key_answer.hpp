#pragma once

#include "storage/aws_keys.hpp"
#include "storage/service_request.hpp"

#include <headrace/base/result.hpp>

#include <boost/json/object.hpp>

#include <initializer_list>
#include <string>
#include <string_view>

namespace headrace {

/// How a service names the parts of the keys that it hands out.
struct aws_key_names {
  const char* id = "AccessKeyId";
  const char* secret = "SecretAccessKey";
  const char* token = "Token";
  const char* expires = "Expiration";  ///< RFC 3339, or milliseconds since 1970.
};

/// Makes keys of what a service has handed out. `about` names the service for messages. Errors are
/// `protocol_error` and never repeat a value: no keys, keys that cannot be, a time that is none.
[[nodiscard]] result<aws_keys> keys_of_json(const boost::json::object& members,
                                            const aws_key_names& names, const std::string& about);

/// The same of single parts; `expires` is empty where the keys last.
[[nodiscard]] result<aws_keys> keys_of_parts(aws_credentials parts, std::string_view expires,
                                             const std::string& about);

/// The error for an answer that is no success: `access_denied`, `unavailable` from 500 on. `said`
/// is the service's own word, empty where it has none; it is left out where it repeats one of
/// `secrets`.
[[nodiscard]] error refused_keys(const service_answer& answer, const std::string& what,
                                 std::string said, std::initializer_list<std::string_view> secrets,
                                 const std::string& advice);

}  // namespace headrace
