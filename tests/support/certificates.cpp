#include <support/certificates.hpp>

#include <headrace/base/assert.hpp>

#include <openssl/bio.h>
#include <openssl/ec.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>

#include <array>
#include <cstdint>

namespace headrace::test {
namespace {

using bio_pointer = std::unique_ptr<BIO, decltype(&BIO_free)>;
using key_pointer = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;
using certificate_pointer = std::unique_ptr<X509, decltype(&X509_free)>;

bio_pointer memory() { return {BIO_new(BIO_s_mem()), &BIO_free}; }

std::string text_of(BIO* bio) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio, &data);
  return {data, static_cast<std::size_t>(size)};
}

std::string pem_of(X509* certificate) {
  const auto out = memory();
  HEADRACE_ASSERT(PEM_write_bio_X509(out.get(), certificate) == 1);
  return text_of(out.get());
}

std::string pem_of(EVP_PKEY* key, const std::string& passphrase = {}) {
  const auto out = memory();
  const auto* const cipher = passphrase.empty() ? nullptr : EVP_aes_128_cbc();
  HEADRACE_ASSERT(
      PEM_write_bio_PrivateKey(out.get(), key, cipher,
                               reinterpret_cast<const unsigned char*>(passphrase.data()),
                               static_cast<int>(passphrase.size()), nullptr, nullptr) == 1);
  return text_of(out.get());
}

void extend(X509* certificate, X509* issuer, int kind, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  const std::unique_ptr<X509_EXTENSION, decltype(&X509_EXTENSION_free)> extension(
      X509V3_EXT_conf_nid(nullptr, &context, kind, value.c_str()), &X509_EXTENSION_free);
  HEADRACE_ASSERT(extension != nullptr && X509_add_ext(certificate, extension.get(), -1) == 1);
}

/// Signed by `issuer`, by itself where there is none.
certificate_pointer make(EVP_PKEY* key, const certificate_form& form, X509* issuer,
                         EVP_PKEY* issuer_key) {
  constexpr long day = 24L * 60 * 60;
  certificate_pointer made(X509_new(), &X509_free);
  std::uint32_t serial = 0;
  HEADRACE_ASSERT(RAND_bytes(reinterpret_cast<unsigned char*>(&serial), sizeof serial) == 1);
  X509_set_version(made.get(), X509_VERSION_3);
  ASN1_INTEGER_set_uint64(X509_get_serialNumber(made.get()), serial);
  X509_time_adj_ex(X509_getm_notBefore(made.get()), form.valid_from, 0, nullptr);
  X509_time_adj_ex(X509_getm_notAfter(made.get()), form.valid_until, day / 2, nullptr);
  X509_NAME_add_entry_by_txt(X509_get_subject_name(made.get()), "CN", MBSTRING_UTF8,
                             reinterpret_cast<const unsigned char*>(form.common_name.data()),
                             static_cast<int>(form.common_name.size()), -1, 0);
  X509* const signer = issuer != nullptr ? issuer : made.get();
  X509_set_issuer_name(made.get(), X509_get_subject_name(signer));
  X509_set_pubkey(made.get(), key);
  extend(made.get(), signer, NID_basic_constraints,
         issuer == nullptr ? "critical,CA:TRUE" : "critical,CA:FALSE");
  std::string names;
  for (const auto& name : form.names) names.append(names.empty() ? "" : ",").append(name);
  if (!names.empty()) extend(made.get(), signer, NID_subject_alt_name, names);
  HEADRACE_ASSERT(X509_sign(made.get(), issuer_key != nullptr ? issuer_key : key, EVP_sha256()) >
                  0);
  return made;
}

}  // namespace

authority::authority(const std::string& name)
    : key_(EVP_EC_gen("P-256")),
      certificate_(
          make(key_.get(), {.common_name = name, .names = {}}, nullptr, nullptr).release()) {}

std::string authority::certificate() const { return pem_of(certificate_.get()); }

identity authority::issue(const certificate_form& form) const {
  const key_pointer key(EVP_EC_gen("P-256"), &EVP_PKEY_free);
  const auto made = make(key.get(), form, certificate_.get(), key_.get());
  return {pem_of(made.get()), pem_of(key.get())};
}

std::string encrypted(const std::string& key, const std::string& passphrase) {
  const bio_pointer in(BIO_new_mem_buf(key.data(), static_cast<int>(key.size())), &BIO_free);
  const key_pointer read(PEM_read_bio_PrivateKey(in.get(), nullptr, nullptr, nullptr),
                         &EVP_PKEY_free);
  HEADRACE_ASSERT(read != nullptr);
  return pem_of(read.get(), passphrase);
}

}  // namespace headrace::test
