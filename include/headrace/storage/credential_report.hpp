#pragma once

#include <headrace/base/clock.hpp>

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace headrace {

/// Which credentials a store uses, and where they were found. Holds no secret: it may be printed.
struct credential_report {
  /// Where they come from: "the variables AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY", "profile
  /// 'prod' in ~/.aws/credentials", "none: requests are anonymous".
  std::string source;
  std::string identity;  ///< Whose they are: a key id, an account, an e-mail address; may be empty.
  std::optional<system_time> expires;                        ///< Nothing: they last.
  std::vector<std::pair<std::string, std::string>> details;  ///< "region", "endpoint", …
};

}  // namespace headrace
