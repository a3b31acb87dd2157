#pragma once

#include <headrace/base/result.hpp>
#include <headrace/http/http_origin.hpp>

#include <string>
#include <string_view>

namespace headrace {

/// Where a redirect leads: path and query may hold a signature and appear in no message.
struct redirect_target {
  http_origin origin;
  std::string target;
};

/// Resolves `location`, absolute or relative, against the request that it answers (RFC
/// 9110, 10.2.2). Errors are `protocol_error`: no URL, another scheme than `http` and `https`, from
/// `https` to `http`.
[[nodiscard]] result<redirect_target> resolve_redirect(const http_origin& from,
                                                       std::string_view target,
                                                       std::string_view location);

}  // namespace headrace
