#pragma once

#include <headrace/base/clock.hpp>
#include <headrace/storage/aws_credentials.hpp>

#include <array>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace headrace {

/// The SHA-256 of nothing: the payload hash of a request without a body.
inline constexpr std::string_view sha256_of_nothing =
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

/// In place of the payload hash: the body is not signed. For TLS only.
inline constexpr std::string_view unsigned_payload = "UNSIGNED-PAYLOAD";

/// The payload hash of a request whose body is `text`.
[[nodiscard]] std::string sha256_of(std::string_view text);

/// Encodes `parameters` as SigV4 wants to see them: name and value percent-encoded, `/` included,
/// sorted by encoded name, then value. A request that is sent with exactly this query is signed
/// right.
[[nodiscard]] std::string canonical_query(
    std::span<const std::pair<std::string, std::string>> parameters);

/// What a signature covers. Views: nothing is kept.
struct signable_request {
  std::string_view method = "GET";
  std::string_view host;  ///< The value of the `Host` field, with the port where that is sent.
  std::string_view path = "/";  ///< As it is sent: percent-encoded once, never normalised.
  std::span<const std::pair<std::string, std::string>>
      query;  ///< Not encoded; sent as `canonical_query(query)`.
  std::span<const std::pair<std::string, std::string>>
      headers;  ///< Signed besides `Host` and those that signing adds.
  std::string_view payload_hash =
      sha256_of_nothing;  ///< Lower-case hexadecimal, or `unsigned_payload`.
  std::string_view region = "us-east-1";
  std::string_view service = "s3";
};

/// AWS Signature Version 4 in header fields. Derived keys are remembered, so that signing range
/// after range costs one hash and one HMAC. Threads: any.
class sigv4_signer {
 public:
  sigv4_signer() = default;
  ~sigv4_signer();
  sigv4_signer(const sigv4_signer&) = delete;
  sigv4_signer& operator=(const sigv4_signer&) = delete;

  /// The fields to send along: `x-amz-date`, `x-amz-content-sha256` (for S3),
  /// `x-amz-security-token` (where there is one) and `Authorization`. `now` is the wall time,
  /// corrected by the store's offset where that is known.
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> sign(
      const signable_request& request, const aws_credentials& credentials, system_time now);

 private:
  using key = std::array<unsigned char, 32>;

  struct derived_key {
    std::string date;
    std::string region;
    std::string service;
    std::string secret;
    key value;
  };

  [[nodiscard]] key signing_key(std::string_view secret, std::string_view date,
                                std::string_view region, std::string_view service);

  std::mutex mutex_;
  std::vector<derived_key> keys_;  // most recently derived last
};

}  // namespace headrace
