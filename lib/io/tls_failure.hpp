#pragma once

#include <headrace/base/error.hpp>

#include <openssl/x509.h>

#include <string>
#include <system_error>
#include <vector>

namespace headrace::detail {

/// Why a certificate was refused, in words that are safe to print: the peer chose them.
struct certificate_refusal {
  int reason = X509_V_OK;
  int depth = 0;  ///< 0: the server's own certificate; more: an authority's.
  std::string subject;
  std::string issuer;
  std::string valid_from;
  std::string valid_until;
  std::vector<std::string> names;  ///< The first of those that the server's certificate is for.
};

/// What the verification that is under way found wrong.
[[nodiscard]] certificate_refusal describe_refusal(X509_STORE_CTX* verification);

/// What is said of a handshake with `host` that failed, apart from what the transport reports.
struct handshake_failure {
  std::string host;
  certificate_refusal refused;
  unsigned long code = 0;   ///< The first of OpenSSL's error queue.
  std::string first_bytes;  ///< The first that the peer sent.
};
[[nodiscard]] error to_error(const handshake_failure& failed);

/// What goes wrong once a TLS connection stands; as `std::error_code` behind `byte_stream`.
///
/// Positive values are reasons of OpenSSL's SSL library, alerts of the peer among them.
enum class tls_fault : int {
  cut = -1,            ///< The stream ended without close_notify: like `connect_error`.
  idle_messages = -2,  ///< The peer sends messages of the protocol, and no content.
  broken = -3,         ///< What came is not what TLS demands.
};
[[nodiscard]] std::error_code make_tls_code(tls_fault fault) noexcept;

/// For what OpenSSL's error queue holds.
[[nodiscard]] std::error_code make_tls_code(unsigned long openssl_code) noexcept;

/// Empties OpenSSL's error queue of this thread and gives its first entry, 0 where there was none.
[[nodiscard]] unsigned long take_openssl_error() noexcept;

/// `openssl_code` in words, such as "no start line".
[[nodiscard]] std::string openssl_reason(unsigned long openssl_code);

}  // namespace headrace::detail
