#pragma once

#include "io/tls_failure.hpp"
#include "io/tls_sessions.hpp"

#include <openssl/ssl.h>

#include <memory>
#include <string>

namespace headrace::detail {

struct ssl_context_free {
  void operator()(SSL_CTX* context) const noexcept { SSL_CTX_free(context); }
};
struct ssl_free {
  void operator()(SSL* connection) const noexcept { SSL_free(connection); }
};
using ssl_pointer = std::unique_ptr<SSL, ssl_free>;

/// What is behind a `tls_context`.
struct tls_terms {
  std::unique_ptr<SSL_CTX, ssl_context_free> context;
  tls_sessions sessions;
};

/// What OpenSSL's callbacks have to know about a connection: its `SSL` points to it.
struct tls_party {
  std::string host;  ///< As it is checked and shown: no brackets, no dot at the end.
  tls_terms* terms;  ///< Of the connection's `tls_context`, which outlives it.
  certificate_refusal refused;
  unsigned idle_messages = 0;  ///< Handshake messages that came since the last byte of content.

  /// Where an `SSL` keeps the pointer.
  static int index();
  static tls_party* of(const SSL* connection) noexcept;
};

}  // namespace headrace::detail
