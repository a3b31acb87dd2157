#pragma once

#include <string>

namespace headrace {

/// Keys of an AWS account, or of a store that speaks S3. Secrets: they appear in no message, log or
/// trace.
struct aws_credentials {
  std::string access_key_id;
  std::string secret_access_key;
  std::string session_token;  ///< Of temporary keys; empty for lasting ones.

  friend bool operator==(const aws_credentials&, const aws_credentials&) = default;
};

}  // namespace headrace
