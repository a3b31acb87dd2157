#pragma once

#include <openssl/evp.h>
#include <openssl/x509.h>

#include <memory>
#include <string>
#include <vector>

namespace headrace::test {

/// A certificate with its chain, and its key, as PEM files hold them.
struct identity {
  std::string certificate;
  std::string key;
};

/// What a certificate says. Days are counted from now; negative ones are past.
struct certificate_form {
  std::string common_name = "headrace test";
  std::vector<std::string> names;  ///< `DNS:localhost`, `IP:127.0.0.1`.
  int valid_from = -1;
  int valid_until = 1;
};

/// A certificate authority of a test's own.
///
///     test::authority ca;
///     const auto server = ca.issue({.names = {"DNS:localhost"}});
///     directory.write("ca.pem", ca.certificate());
class authority {
 public:
  explicit authority(const std::string& name = "headrace test authority");

  /// PEM: what clients trust.
  [[nodiscard]] std::string certificate() const;

  [[nodiscard]] identity issue(const certificate_form& form) const;

 private:
  template <auto free>
  struct deleter {
    template <class T>
    void operator()(T* object) const noexcept {
      free(object);
    }
  };

  std::unique_ptr<EVP_PKEY, deleter<&EVP_PKEY_free>> key_;
  std::unique_ptr<X509, deleter<&X509_free>> certificate_;
};

/// `key`, an `identity`'s, encrypted with a passphrase.
[[nodiscard]] std::string encrypted(const std::string& key, const std::string& passphrase);

}  // namespace headrace::test
