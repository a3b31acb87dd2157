#pragma once

#include <openssl/ssl.h>
#include <support/certificates.hpp>

#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace headrace::test {

/// How a server of a test speaks TLS.
struct tls_server_options {
  identity self;
  std::string client_authority;  ///< PEM: clients must show a certificate of it. Empty: need not.
  int least_version = TLS1_2_VERSION;
  int most_version = TLS1_3_VERSION;
  std::size_t tickets = 2;  ///< After a handshake of TLS 1.3.
};

/// What the connections of a server share: its certificate and the keys of its tickets.
class tls_server {
 public:
  explicit tls_server(const tls_server_options& given);

  [[nodiscard]] SSL_CTX* context() const noexcept { return context_.get(); }

 private:
  struct context_free {
    void operator()(SSL_CTX* context) const noexcept { SSL_CTX_free(context); }
  };
  std::unique_ptr<SSL_CTX, context_free> context_;
};

/// The server's end of one TLS connection, in memory: what came from the client goes in, what is
/// for the client comes out.
///
///     tls_server_end end(server);
///     end.feed(received);
///     const std::string request = end.read();
///     end.write("HTTP/1.1 200 OK\r\n…");
///     send(end.take());
class tls_server_end {
 public:
  explicit tls_server_end(const tls_server& server);

  /// Takes in what the client sent, and shakes hands as far as that goes.
  void feed(std::string_view bytes);

  /// What the client has said so far.
  [[nodiscard]] std::string read();

  /// Encrypts `bytes`, a record for each 16 KiB.
  void write(std::string_view bytes);

  /// Says goodbye.
  void close_notify();

  /// A new key, and asks for one in turn. TLS 1.3.
  void update_key();

  /// One more ticket. TLS 1.3.
  void send_ticket();

  /// Asks for another handshake. TLS 1.2.
  void renegotiate();

  /// What is to be sent to the client.
  [[nodiscard]] std::string take();

  [[nodiscard]] bool connected() const noexcept { return SSL_is_init_finished(ssl_.get()) == 1; }
  [[nodiscard]] bool finished() const noexcept;  ///< The client has said goodbye.
  [[nodiscard]] bool resumed() const noexcept { return SSL_session_reused(ssl_.get()) == 1; }
  [[nodiscard]] std::string version() const { return SSL_get_version(ssl_.get()); }
  [[nodiscard]] std::string server_name() const;  ///< SNI; empty where there was none.
  [[nodiscard]] std::string protocol() const;     ///< ALPN.
  [[nodiscard]] std::string client_name() const;  ///< The common name of its certificate.
  [[nodiscard]] std::string failure() const { return failure_; }  ///< Such as an alert it sent.

 private:
  void note(int outcome);

  struct ssl_free {
    void operator()(SSL* connection) const noexcept { SSL_free(connection); }
  };
  std::unique_ptr<SSL, ssl_free> ssl_;
  BIO* in_;
  BIO* out_;
  std::string failure_;
};

}  // namespace headrace::test
