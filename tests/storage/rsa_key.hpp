#pragma once

#include <doctest/doctest.h>
#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rsa.h>

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace headrace::test {

/// A key of a service account that a test has made.
class rsa_key {
 public:
  explicit rsa_key(unsigned bits = 2048) : key_(EVP_RSA_gen(bits), &EVP_PKEY_free) {
    REQUIRE(key_ != nullptr);
  }

  /// PKCS #8 in PEM, as Google hands it out.
  [[nodiscard]] std::string pem() const { return written(nullptr); }
  [[nodiscard]] std::string encrypted_pem() const { return written(EVP_aes_128_cbc()); }

  /// Whether `signature` is this key's over `text`, by RS256.
  [[nodiscard]] bool verifies(std::string_view text, std::string_view signature) const {
    const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(),
                                                                          &EVP_MD_CTX_free);
    return EVP_DigestVerifyInit(context.get(), nullptr, EVP_sha256(), nullptr, key_.get()) == 1 &&
           EVP_DigestVerify(context.get(), reinterpret_cast<const unsigned char*>(signature.data()),
                            signature.size(), reinterpret_cast<const unsigned char*>(text.data()),
                            text.size()) == 1;
  }

 private:
  [[nodiscard]] std::string written(const EVP_CIPHER* cipher) const {
    const std::unique_ptr<BIO, decltype(&BIO_free_all)> into(BIO_new(BIO_s_mem()), &BIO_free_all);
    const std::string passphrase = "passphrase";
    REQUIRE(PEM_write_bio_PKCS8PrivateKey(
                into.get(), key_.get(), cipher, cipher != nullptr ? passphrase.data() : nullptr,
                cipher != nullptr ? static_cast<int>(passphrase.size()) : 0, nullptr,
                nullptr) == 1);
    char* text = nullptr;
    const auto size = BIO_get_mem_data(into.get(), &text);
    return {text, static_cast<std::size_t>(size)};
  }

  std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> key_;
};

/// The parts of a JWT between its dots.
[[nodiscard]] inline std::vector<std::string> parts_of(std::string_view token) {
  std::vector<std::string> parts;
  for (;;) {
    const auto dot = token.find('.');
    parts.emplace_back(token.substr(0, dot));
    if (dot == std::string_view::npos) return parts;
    token.remove_prefix(dot + 1);
  }
}

[[nodiscard]] inline std::string from_base64url(std::string text) {
  std::ranges::replace(text, '-', '+');
  std::ranges::replace(text, '_', '/');
  std::size_t padding = 0;
  for (; text.size() % 4 != 0; ++padding) text += '=';
  std::string bytes(text.size(), '\0');
  const int size = EVP_DecodeBlock(reinterpret_cast<unsigned char*>(bytes.data()),
                                   reinterpret_cast<const unsigned char*>(text.data()),
                                   static_cast<int>(text.size()));
  REQUIRE(size >= 0);
  bytes.resize(static_cast<std::size_t>(size) - padding);
  return bytes;
}

}  // namespace headrace::test
