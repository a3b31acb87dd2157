#pragma once

#include "storage/variables.hpp"

#include <headrace/base/clock.hpp>
#include <headrace/base/result.hpp>
#include <headrace/http/network_settings.hpp>
#include <headrace/storage/aws_credentials.hpp>
#include <headrace/storage/transfer.hpp>

#include <memory>
#include <optional>
#include <string>

namespace headrace {

/// Keys, and where they were found.
struct aws_keys {
  std::optional<aws_credentials> credentials;  ///< Nothing: requests are not signed.
  std::string source;                          ///< For people: "the variables AWS_ACCESS_KEY_ID …".
  std::optional<system_time> expires;          ///< Nothing: they last.
  std::string looked_at;  ///< Where no link has any: which were asked, and what to set.

  /// The same keys, wherever they were found.
  friend bool operator==(const aws_keys& a, const aws_keys& b) {
    return a.credentials == b.credentials;
  }
};

/// What a link of the chain has: nothing where it is not configured.
using found_aws_keys = result<std::optional<aws_keys>>;

/// What each link of the chain is given. Cheap to copy; what it refers to outlives the search.
struct aws_search {
  storage_loop& loop;
  const variable_lookup& variable;
  std::shared_ptr<const network_settings> network;
  const clock& time;
  std::string region;        ///< To ask STS in; empty: the endpoint that is everywhere.
  std::string sts_endpoint;  ///< Empty: AWS's own.
  std::string sso_endpoint;  ///< Empty: AWS's own.
};

}  // namespace headrace
