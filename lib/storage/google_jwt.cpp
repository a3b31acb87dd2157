#include "storage/google_jwt.hpp"

#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>

#include <cstddef>
#include <memory>
#include <utility>

namespace headrace {
namespace {

template <auto Free>
struct freed_by {
  template <class T>
  void operator()(T* owned) const noexcept {
    Free(owned);
  }
};
using memory_bio = std::unique_ptr<BIO, freed_by<&BIO_free_all>>;
using private_key_handle = std::unique_ptr<EVP_PKEY, freed_by<&EVP_PKEY_free>>;
using digest_context = std::unique_ptr<EVP_MD_CTX, freed_by<&EVP_MD_CTX_free>>;

failure<error> refused(const char* message) {
  // What OpenSSL has noted would turn up in the next error of this thread's.
  ERR_clear_error();
  return failure{error(errc::invalid_request, message)};
}

/// Without it OpenSSL would ask the terminal.
int no_passphrase(char*, int, int, void*) { return -1; }

}  // namespace

std::string base64url(std::string_view bytes) {
  std::string encoded(4 * ((bytes.size() + 2) / 3) + 1, '\0');
  const int size = EVP_EncodeBlock(reinterpret_cast<unsigned char*>(encoded.data()),
                                   reinterpret_cast<const unsigned char*>(bytes.data()),
                                   static_cast<int>(bytes.size()));
  encoded.resize(static_cast<std::size_t>(size));
  while (encoded.ends_with('=')) encoded.pop_back();
  for (char& c : encoded) {
    if (c == '+') c = '-';
    if (c == '/') c = '_';
  }
  return encoded;
}

result<std::string> sign_google_jwt(const std::string& email, const std::string& key_id,
                                    const std::string& private_key, std::string_view scope,
                                    system_time now) {
  const memory_bio text(BIO_new_mem_buf(private_key.data(), static_cast<int>(private_key.size())));
  if (!text) return failure{error(errc::out_of_memory, "no memory to sign a token")};
  const private_key_handle key(
      PEM_read_bio_PrivateKey(text.get(), nullptr, &no_passphrase, nullptr));
  if (!key) return refused("'private_key' is no private key in PEM without a passphrase");
  const int bits = EVP_PKEY_get_bits(key.get());
  if (EVP_PKEY_get_base_id(key.get()) != EVP_PKEY_RSA || bits < 1024 || bits > 8192)
    return refused("'private_key' is no RSA key of 1024 to 8192 bits");

  boost::json::object header{{"alg", "RS256"}, {"typ", "JWT"}};
  if (!key_id.empty()) header["kid"] = key_id;
  const auto issued = std::chrono::floor<std::chrono::seconds>(now).time_since_epoch().count();
  const boost::json::object claims{{"iss", email},
                                   {"sub", email},
                                   {"scope", boost::json::string_view(scope.data(), scope.size())},
                                   {"iat", issued},
                                   {"exp", issued + google_jwt_lifetime.count()}};
  std::string token =
      base64url(boost::json::serialize(header)) + "." + base64url(boost::json::serialize(claims));

  const digest_context context(EVP_MD_CTX_new());
  std::size_t size = 0;
  const auto* const data = reinterpret_cast<const unsigned char*>(token.data());
  std::string signature;
  bool done = context &&
              EVP_DigestSignInit(context.get(), nullptr, EVP_sha256(), nullptr, key.get()) == 1 &&
              EVP_DigestSign(context.get(), nullptr, &size, data, token.size()) == 1;
  if (done) {
    signature.resize(size);
    done = EVP_DigestSign(context.get(), reinterpret_cast<unsigned char*>(signature.data()), &size,
                          data, token.size()) == 1;
  }
  if (!done) return refused("'private_key' cannot sign");
  signature.resize(size);
  return token + "." + base64url(signature);
}

}  // namespace headrace
