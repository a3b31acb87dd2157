#pragma once

#include "storage/refreshed.hpp"
#include "storage/service_place.hpp"
#include "storage/variables.hpp"

#include <headrace/base/result.hpp>
#include <headrace/storage/storage_options.hpp>

#include <memory>
#include <string>
#include <vector>

namespace headrace {

/// What requests to the Hub carry, and where it was found.
struct hub_token {
  std::string bearer;  ///< A secret. Empty: requests are anonymous.
  std::string source;  ///< As `credential_report::source`.

  friend bool operator==(const hub_token&, const hub_token&) = default;
};

/// What the options and the environment say about the Hub, options first. An empty variable counts
/// as not set.
struct hub_settings {
  service_place endpoint;
  hub_token token;                 ///< Of an option or a variable; may be empty.
  std::string anonymous_reason;    ///< Not empty: no token is wanted, and who said so.
  std::vector<std::string> files;  ///< Where a token may lie, in order.
};

/// Reads the options `endpoint`, `token` and `anonymous`; `HF_ENDPOINT`; `HF_TOKEN` or
/// `HUGGING_FACE_HUB_TOKEN`; `HF_TOKEN_PATH`, `HF_HOME`, `XDG_CACHE_HOME` and `HOME` for the files;
/// `HF_HUB_DISABLE_IMPLICIT_TOKEN`, which leaves the option alone. Reads no file. Errors are
/// `invalid_request` and name the option or variable, never its value.
[[nodiscard]] result<hub_settings> read_hub_settings(const storage_options& options,
                                                     const variable_lookup& variable);

/// The token of `settings`, or of the first of its files that is there; otherwise none, since
/// nobody has logged in. Errors name the file: `invalid_request` where it holds no token,
/// `access_denied` where it must not be read.
[[nodiscard]] std::shared_ptr<expiring_source<hub_token>> make_hub_token_source(
    hub_settings settings);

}  // namespace headrace
