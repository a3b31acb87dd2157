#pragma once

#include "storage/aws_environment.hpp"

#include <headrace/base/result.hpp>
#include <headrace/base/uri.hpp>

#include <cstdint>
#include <string>
#include <string_view>

namespace headrace {

/// Where a bucket is and how its requests look.
struct s3_address {
  std::string scheme;  ///< `http` or `https`.
  std::string host;    ///< To connect to: a name or an address, an IPv6 one without brackets.
  std::uint16_t port = 443;
  /// Percent-encoded, without a `/` at its end: the endpoint's own, and the bucket with path style.
  std::string base_path;
  bool path_style = false;
  /// To sign for. `us-east-1` where nobody says another: a bucket elsewhere answers with its own.
  std::string region;
  bool region_known = false;  ///< Whether somebody said so.
  bool is_aws = false;        ///< The host follows the region.

  std::string bucket;
  std::string key;         ///< What the URI names: an object, or a prefix.
  std::string version_id;  ///< Of `s3://bucket/key?versionId=…`; empty: the newest.

  /// The value of the `Host` field: brackets around IPv6, the port where it is not the scheme's
  /// own.
  [[nodiscard]] std::string host_field() const;

  /// The path of an object's requests: `key` percent-encoded once, nothing normalised.
  [[nodiscard]] std::string object_path(std::string_view object_key) const;

  /// The path of the bucket's own requests, such as listings.
  [[nodiscard]] std::string bucket_path() const;

  /// The same bucket, asked in the region that the store named (`x-amz-bucket-region`, or `Region`
  /// in the body). Errors: `protocol_error`, where that is no name of a region.
  [[nodiscard]] result<s3_address> in_region(std::string_view other) const;
};

/// Works out the address of `s3://bucket/key`. Errors are `invalid_request`: a bucket name that is
/// none, an endpoint that is no `http(s)` URL, keys inside the URI; `unsupported`: access point
/// ARNs (their aliases are bucket names like others), directory buckets of AWS.
[[nodiscard]] result<s3_address> make_s3_address(const uri& location, const aws_settings& settings);

}  // namespace headrace
