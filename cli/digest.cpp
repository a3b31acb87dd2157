#include "digest.hpp"

#include <headrace/base/error.hpp>

#include <openssl/evp.h>

#include <array>

namespace headrace::cli {

struct sha256::state {
  // Fetched once: EVP_sha256() would be looked up again at each message.
  EVP_MD* algorithm = EVP_MD_fetch(nullptr, "SHA256", nullptr);
  EVP_MD_CTX* context = EVP_MD_CTX_new();

  state() = default;
  state(const state&) = delete;
  state& operator=(const state&) = delete;
  ~state() {
    EVP_MD_CTX_free(context);
    EVP_MD_free(algorithm);
  }
};

void sha256::free_state::operator()(state* freed) const noexcept { delete freed; }

sha256::sha256() : state_(new state) {
  if (state_->algorithm == nullptr || state_->context == nullptr) {
    throw error(errc::unsupported, "OpenSSL has no SHA-256 here");
  }
}

std::string sha256::operator()(std::span<const std::byte> bytes) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned size = 0;
  if (EVP_DigestInit_ex2(state_->context, state_->algorithm, nullptr) != 1 ||
      EVP_DigestUpdate(state_->context, bytes.data(), bytes.size()) != 1 ||
      EVP_DigestFinal_ex(state_->context, digest.data(), &size) != 1) {
    throw error(errc::internal, "OpenSSL could not compute a SHA-256");
  }
  constexpr std::string_view digits = "0123456789abcdef";
  std::string text;
  for (unsigned at = 0; at < size; ++at) {
    text += digits[digest[at] >> 4];
    text += digits[digest[at] & 15];
  }
  return text;
}

}  // namespace headrace::cli
