#pragma once

#include <headrace/http/http_response_head.hpp>

#include <openssl/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace headrace {

/// The checksum that an answer carries for exactly the bytes of its body.
///
/// `Content-Digest` (RFC 9530) is that of the body of any answer. `Repr-Digest`, `Content-MD5`,
/// `x-goog-hash` and `x-amz-checksum-*` are those of the whole object, whatever part of it is sent:
/// they count only where the body is all of it. Where there are several the one that costs least is
/// checked; what is not understood is as if it were not there.
///
///     if (auto checksum = body_checksum::of(head, true)) { checksum->update(body); … matches() … }
class body_checksum {
 public:
  /// Nothing where the answer carries none. `whole`: the body is all of the object.
  [[nodiscard]] static std::optional<body_checksum> of(const http_response_head& head, bool whole);

  /// Takes the next bytes of the body.
  void update(std::span<const std::byte> bytes);

  /// Whether the bytes so far are those that the answer means. Once.
  [[nodiscard]] bool matches();

  /// For messages: "the crc32c in x-goog-hash".
  [[nodiscard]] const std::string& name() const noexcept { return name_; }

 private:
  struct free_context {
    void operator()(EVP_MD_CTX* context) const noexcept;
  };
  struct algorithm;
  static const algorithm* known_algorithm(std::string_view name) noexcept;

  body_checksum(const algorithm& how, std::string expected, std::string name);

  const algorithm* how_;
  std::string expected_;  ///< Base64.
  std::string name_;
  std::uint64_t crc_ = 0;
  std::unique_ptr<EVP_MD_CTX, free_context> digest_;
};

}  // namespace headrace
