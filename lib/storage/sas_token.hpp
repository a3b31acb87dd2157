#pragma once

#include <headrace/base/clock.hpp>

#include <optional>
#include <string>
#include <string_view>

namespace headrace {

/// A shared access signature: a part of a URL's query that gives rights for a time.
struct sas_token {
  std::string query;                   ///< As it is sent: percent-encoded, without `?`. A secret.
  std::string permissions;             ///< `sp`; empty where a stored policy gives them.
  std::optional<system_time> starts;   ///< `st`
  std::optional<system_time> expires;  ///< `se`
};

/// Reads a token as the portal and the tools hand it out: with or without `?`, its values encoded
/// or not. Nothing where it is none: no signature in it, characters that a URL cannot have, longer
/// than 4 KiB.
[[nodiscard]] std::optional<sas_token> parse_sas_token(std::string_view text);

}  // namespace headrace
