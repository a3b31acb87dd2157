#pragma once

#include <headrace/base/clock.hpp>
#include <headrace/base/result.hpp>

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace headrace {

/// What a signature of Azure Storage covers. Views: nothing is kept.
struct shared_key_request {
  std::string_view method = "GET";
  std::string_view path = "/";  ///< As it is sent: percent-encoded once, the endpoint's own path
                                ///< (the emulator's account) included.
  std::span<const std::pair<std::string, std::string>> query;   ///< Not encoded.
  std::span<const std::pair<std::string, std::string>> fields;  ///< All that are sent.
};

/// The text that is signed: the version of 2015-02-21 and later, for Blob Storage, of a request
/// without a body.
[[nodiscard]] std::string string_to_sign(const shared_key_request& request,
                                         std::string_view account);

/// The bytes of an account's key. Nothing where the text is not base64.
[[nodiscard]] std::optional<std::string> decode_account_key(std::string_view text);

/// Signs with an account's key (`SharedKey`). Threads: any.
class shared_key_signer {
 public:
  /// `key`: decoded.
  shared_key_signer(std::string account, std::string key);
  ~shared_key_signer();
  shared_key_signer(const shared_key_signer&) = delete;
  shared_key_signer& operator=(const shared_key_signer&) = delete;

  /// The value of `Authorization`. `request.fields` holds `x-ms-date` already.
  [[nodiscard]] std::string authorize(const shared_key_request& request) const;

 private:
  const std::string account_;
  std::string key_;
};

/// `Fri, 26 Jun 2015 23:39:12 GMT`: the value of `x-ms-date`.
[[nodiscard]] std::string ms_date(system_time now);

}  // namespace headrace
