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

/// One blob of a listing.
struct azure_blob {
  std::string name;  ///< Decoded. Any bytes: whoever prints it quotes it.
  std::uint64_t size = 0;

  friend bool operator==(const azure_blob&, const azure_blob&) = default;
};

/// One page of a listing. Directories of accounts with a hierarchical namespace are left out.
struct azure_listing {
  std::vector<azure_blob> blobs;
  std::vector<std::string> prefixes;
  std::string next_marker;  ///< Empty on the last page.
};

/// What the bodies of a store may cost. A page of 5000 blobs has 5 MB where their names are long;
/// their metadata, which are asked for because directories are marked there, may add to that.
inline constexpr std::size_t max_azure_listing_body = std::size_t{32} << 20;
inline constexpr std::size_t max_azure_error_body = std::size_t{64} << 10;
inline constexpr std::size_t max_azure_page = 5'000;

/// Reads the answer to List Blobs. Errors are `protocol_error`: not XML, not a listing, out of
/// bounds.
[[nodiscard]] result<azure_listing> parse_azure_listing(std::string_view body);

/// The same as what stores have in common.
[[nodiscard]] result<listing_page> parse_azure_page(std::string_view body);

/// What a store says about a request that it refuses. Text of the peer: control characters are
/// taken out and lengths are bounded, so that it may stand in a message.
struct azure_error {
  std::string code;     ///< `BlobNotFound`
  std::string message;  ///< For people; without the request's id and time, which Azure adds.
};

/// Reads the body of an error. Nothing where it is not Azure's (a proxy's page, an empty body, one
/// over the bound).
[[nodiscard]] std::optional<azure_error> parse_azure_error(std::string_view body);

}  // namespace headrace
