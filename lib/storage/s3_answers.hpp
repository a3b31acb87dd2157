#pragma once

#include "storage/listing_request.hpp"

#include <headrace/base/result.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace headrace {

/// One object of a listing.
struct s3_object {
  std::string key;  ///< Decoded. Any bytes: whoever prints it quotes it.
  std::uint64_t size = 0;
  std::string etag;  ///< As it stands there, quotes included; empty where the store sends none.
};

/// One page of a listing.
struct s3_listing {
  std::vector<s3_object> objects;
  std::vector<std::string> common_prefixes;
  bool is_truncated = false;
  std::string next_continuation_token;  ///< Not empty where `is_truncated`.
};

/// What the bodies of a store may cost. Well above what S3 sends: a page of 1000 keys of 1024
/// bytes, each byte escaped.
inline constexpr std::size_t max_listing_body = std::size_t{8} << 20;
inline constexpr std::size_t max_error_body = std::size_t{64} << 10;
inline constexpr std::size_t max_listing_keys = 10'000;

/// Reads the answer to ListObjectsV2. With `encoding-type=url` keys and prefixes come decoded.
/// Errors are `protocol_error`: not XML, not a listing, out of bounds, truncated without a
/// continuation token.
[[nodiscard]] result<s3_listing> parse_s3_listing(std::string_view body);

/// The same as what stores have in common.
[[nodiscard]] result<listing_page> parse_s3_page(std::string_view body);

/// What a store says about a request that it refuses. Text of the peer: control characters are
/// taken out and lengths are bounded, so that it may stand in a message.
struct s3_error {
  std::string code;        ///< `NoSuchKey`
  std::string message;     ///< For people.
  std::string request_id;  ///< What the store's support asks for.
  std::string
      region;  ///< Where the bucket is, with redirects; empty unless it looks like a region.
  std::string
      endpoint;  ///< The host to ask instead, with redirects; empty unless it looks like a host.
};

/// Reads the body of an error. Nothing where it is not S3's (a proxy's page, an empty body, one
/// over the bound).
[[nodiscard]] std::optional<s3_error> parse_s3_error(std::string_view body);

}  // namespace headrace
