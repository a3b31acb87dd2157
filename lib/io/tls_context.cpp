#include <headrace/io/tls_context.hpp>

#include "io/tls_terms.hpp"

#include <headrace/base/assert.hpp>
#include <headrace/base/log.hpp>

#include <dirent.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <new>
#include <string_view>
#include <utility>

namespace headrace {
namespace detail {
namespace {

// Where distributions keep the authorities that they trust, for an OpenSSL that looks elsewhere.
constexpr std::array<const char*, 5> bundles{
    "/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem", "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/cert.pem"};

// In this order the faster one of equals comes first: a server without a wish of its own takes it.
constexpr const char* suites =
    "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256";

constexpr std::array<unsigned char, 9> http_1_1{8, 'h', 't', 't', 'p', '/', '1', '.', '1'};

error refused(const std::string& message) { return error(errc::invalid_request, message); }

/// What is wrong with a file that OpenSSL would not take.
std::string why_not(const std::string& file, unsigned long code) {
  struct stat status{};
  if (::stat(file.c_str(), &status) != 0) return std::strerror(errno);
  if (S_ISDIR(status.st_mode)) return "it is a directory";
  if (::access(file.c_str(), R_OK) != 0) return std::strerror(errno);
  return code != 0 ? openssl_reason(code) : "it holds no certificate in PEM form";
}

bool is_directory(const std::string& path) {
  struct stat status{};
  return ::stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
}

/// Directories come as in a PATH, by colons.
template <class Condition>
bool any_of_path(std::string_view directories, Condition holds) {
  while (!directories.empty()) {
    const auto end = std::min(directories.find(':'), directories.size());
    if (holds(std::string(directories.substr(0, end)))) return true;
    directories.remove_prefix(std::min(end + 1, directories.size()));
  }
  return false;
}

/// Whether it holds certificates under their hashes, such as `5a7722fb.0`.
bool has_certificates(const std::string& directory) {
  const std::unique_ptr<DIR, decltype(&::closedir)> opened(::opendir(directory.c_str()),
                                                           &::closedir);
  if (opened == nullptr) return false;
  while (const dirent* const entry = ::readdir(opened.get())) {
    const std::string_view name = entry->d_name;
    if (name.size() == 10 && name[8] == '.') return true;
  }
  return false;
}

std::string default_place(const char* variable, const char* otherwise) {
  const char* const named = ::secure_getenv(variable);
  return named != nullptr ? named : otherwise;
}

result<void> trust_system(SSL_CTX* context) {
  if (SSL_CTX_set_default_verify_paths(context) != 1) {
    return failure{error(errc::internal, "cannot use OpenSSL's default authorities: " +
                                             openssl_reason(take_openssl_error()))};
  }
  const auto file = default_place(X509_get_default_cert_file_env(), X509_get_default_cert_file());
  const auto directories =
      default_place(X509_get_default_cert_dir_env(), X509_get_default_cert_dir());
  if (::access(file.c_str(), R_OK) == 0 || any_of_path(directories, has_certificates)) return {};
  for (const char* const bundle : bundles) {
    if (SSL_CTX_load_verify_file(context, bundle) == 1) return {};
    ERR_clear_error();
  }
  // Not an error yet: the handshake fails with one that says what to do.
  log(log_level::warning,
      "no trusted certificate authorities found on this system: install ca-certificates, or name "
      "a file by --ca-file or SSL_CERT_FILE");
  return {};
}

result<void> trust(SSL_CTX* context, const tls_options& options) {
  if (options.ca_file.empty() && options.ca_directory.empty()) return trust_system(context);
  if (!options.ca_file.empty() && SSL_CTX_load_verify_file(context, options.ca_file.c_str()) != 1) {
    return failure{refused("cannot use the certificate authorities in '" + options.ca_file +
                           "' (from --ca-file, AWS_CA_BUNDLE or SSL_CERT_FILE): " +
                           why_not(options.ca_file, take_openssl_error()))};
  }
  if (options.ca_directory.empty()) return {};
  // A directory that is not there is passed over beside a file, as everywhere.
  const bool usable = any_of_path(options.ca_directory, is_directory);
  if (usable ? SSL_CTX_load_verify_dir(context, options.ca_directory.c_str()) != 1
             : options.ca_file.empty()) {
    return failure{refused("cannot use the certificate authorities in '" + options.ca_directory +
                           "' (from SSL_CERT_DIR): it is not a directory")};
  }
  ERR_clear_error();
  return {};
}

/// OpenSSL's own would ask on the terminal.
int no_passphrase(char* /*into*/, int /*size*/, int /*writing*/, void* asked) {
  *static_cast<bool*>(asked) = true;
  return -1;
}

result<void> identify(SSL_CTX* context, const tls_options& options) {
  if (options.certificate_file.empty() && options.key_file.empty()) return {};
  if (options.key_file.empty()) {
    return failure{refused("certificate_file is '" + options.certificate_file +
                           "', but key_file is not set: a client certificate needs its key")};
  }
  if (options.certificate_file.empty()) {
    return failure{refused("key_file is '" + options.key_file +
                           "', but certificate_file is not set: set both, or neither")};
  }
  bool asked = false;
  SSL_CTX_set_default_passwd_cb(context, &no_passphrase);
  SSL_CTX_set_default_passwd_cb_userdata(context, &asked);
  const bool certified =
      SSL_CTX_use_certificate_chain_file(context, options.certificate_file.c_str()) == 1;
  if (!certified) {
    return failure{refused(
        "cannot use the client certificate in '" + options.certificate_file +
        "' (certificate_file): " + why_not(options.certificate_file, take_openssl_error()))};
  }
  const bool keyed =
      SSL_CTX_use_PrivateKey_file(context, options.key_file.c_str(), SSL_FILETYPE_PEM) == 1;
  SSL_CTX_set_default_passwd_cb_userdata(context, nullptr);
  if (keyed && SSL_CTX_check_private_key(context) == 1) return {};
  const auto code = take_openssl_error();
  const std::string key = "'" + options.key_file + "' (key_file)";
  if (asked) {
    return failure{refused("the key in " + key + " is encrypted: store it without a passphrase")};
  }
  if (keyed ||
      (ERR_GET_LIB(code) == ERR_LIB_X509 && ERR_GET_REASON(code) == X509_R_KEY_VALUES_MISMATCH)) {
    return failure{refused("the key in " + key + " does not belong to the certificate in '" +
                           options.certificate_file + "' (certificate_file)")};
  }
  return failure{
      refused("cannot use the client key in " + key + ": " + why_not(options.key_file, code))};
}

int on_verified(int accepted, X509_STORE_CTX* verification) {
  if (accepted == 1) return 1;
  const auto* const connection = static_cast<const SSL*>(
      X509_STORE_CTX_get_ex_data(verification, SSL_get_ex_data_X509_STORE_CTX_idx()));
  auto* const party = tls_party::of(connection);
  try {
    if (party != nullptr) party->refused = describe_refusal(verification);
  } catch (const std::bad_alloc&) {
    // Refused without a reason: nothing may be thrown through OpenSSL, which is C.
  }
  return 0;
}

int on_session(SSL* connection, SSL_SESSION* session) {
  auto* const party = tls_party::of(connection);
  if (party == nullptr) return 0;
  try {
    party->terms->sessions.put(party->host, session_pointer(session));
  } catch (const std::bad_alloc&) {
    // Not kept: the next handshake is a whole one.
  }
  return 1;  // it was ours
}

void on_message(int writing, int /*version*/, int type, const void* /*bytes*/, std::size_t /*size*/,
                SSL* connection, void* /*unused*/) {
  auto* const party = tls_party::of(connection);
  if (writing == 0 && type == SSL3_RT_HANDSHAKE && party != nullptr) ++party->idle_messages;
}

void warn_once() {
  static std::atomic<bool> warned{false};
  if (warned.exchange(true, std::memory_order_relaxed)) return;
  log(log_level::warning,
      "certificates are not verified (verify_tls is false): anybody in between can read what is "
      "sent and change what is received");
}

}  // namespace

int tls_party::index() {
  static const int found = SSL_get_ex_new_index(0, nullptr, nullptr, nullptr, nullptr);
  return found;
}

tls_party* tls_party::of(const SSL* connection) noexcept {
  return static_cast<tls_party*>(SSL_get_ex_data(connection, index()));
}

}  // namespace detail

tls_context::tls_context(std::unique_ptr<detail::tls_terms> terms) : terms_(std::move(terms)) {}
tls_context::~tls_context() = default;

result<std::shared_ptr<tls_context>> tls_context::make(const tls_options& options) {
  ERR_clear_error();
  auto terms = std::make_unique<detail::tls_terms>();
  terms->context.reset(SSL_CTX_new(TLS_client_method()));
  SSL_CTX* const context = terms->context.get();
  if (context == nullptr) {
    return failure{error(errc::internal, "cannot start OpenSSL: " +
                                             detail::openssl_reason(detail::take_openssl_error()))};
  }
  const bool set = SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION) == 1 &&
                   SSL_CTX_set_max_proto_version(context, TLS1_3_VERSION) == 1 &&
                   SSL_CTX_set_ciphersuites(context, detail::suites) == 1 &&
                   SSL_CTX_set_alpn_protos(context, detail::http_1_1.data(),
                                           static_cast<unsigned>(detail::http_1_1.size())) == 0;
  if (!set) {
    return failure{error(errc::internal, "cannot set OpenSSL up: " +
                                             detail::openssl_reason(detail::take_openssl_error()))};
  }
  SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_CLIENT | SSL_SESS_CACHE_NO_INTERNAL);
  SSL_CTX_sess_set_new_cb(context, &detail::on_session);
  SSL_CTX_set_msg_callback(context, &detail::on_message);
  if (options.verify) {
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER, &detail::on_verified);
    auto trusted = detail::trust(context, options);
    if (!trusted) return failure{std::move(trusted).error()};
  } else {
    SSL_CTX_set_verify(context, SSL_VERIFY_NONE, nullptr);
    detail::warn_once();
  }
  auto identified = detail::identify(context, options);
  if (!identified) return failure{std::move(identified).error()};
  return std::shared_ptr<tls_context>(new tls_context(std::move(terms)));
}

}  // namespace headrace
