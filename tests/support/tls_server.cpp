#include <support/tls_server.hpp>

#include <headrace/base/assert.hpp>

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>

#include <algorithm>
#include <array>
#include <span>

namespace headrace::test {
namespace {

using bio_pointer = std::unique_ptr<BIO, decltype(&BIO_free)>;

bio_pointer reader_of(const std::string& text) {
  return {BIO_new_mem_buf(text.data(), static_cast<int>(text.size())), &BIO_free};
}

std::unique_ptr<X509, decltype(&X509_free)> certificate_of(const std::string& pem) {
  return {PEM_read_bio_X509(reader_of(pem).get(), nullptr, nullptr, nullptr), &X509_free};
}

int choose_protocol(SSL* /*connection*/, const unsigned char** chosen, unsigned char* chosen_size,
                    const unsigned char* offered, unsigned offered_size, void* /*unused*/) {
  constexpr std::string_view wanted = "http/1.1";
  std::span<const unsigned char> rest(offered, offered_size);
  while (!rest.empty()) {
    const auto name = rest.subspan(1, std::min<std::size_t>(rest[0], rest.size() - 1));
    if (std::equal(name.begin(), name.end(), wanted.begin(), wanted.end())) {
      *chosen = name.data();
      *chosen_size = static_cast<unsigned char>(name.size());
      return SSL_TLSEXT_ERR_OK;
    }
    rest = rest.subspan(1 + name.size());
  }
  return SSL_TLSEXT_ERR_NOACK;
}

}  // namespace

tls_server::tls_server(const tls_server_options& given)
    : context_(SSL_CTX_new(TLS_server_method())) {
  SSL_CTX* const context = context_.get();
  HEADRACE_ASSERT(context != nullptr);
  // Old versions are for tests of clients that refuse them.
  if (given.least_version < TLS1_2_VERSION) SSL_CTX_set_security_level(context, 0);
  SSL_CTX_set_min_proto_version(context, given.least_version);
  SSL_CTX_set_max_proto_version(context, given.most_version);
  const auto certificate = certificate_of(given.self.certificate);
  const std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> key(
      PEM_read_bio_PrivateKey(reader_of(given.self.key).get(), nullptr, nullptr, nullptr),
      &EVP_PKEY_free);
  HEADRACE_ASSERT(SSL_CTX_use_certificate(context, certificate.get()) == 1);
  HEADRACE_ASSERT(SSL_CTX_use_PrivateKey(context, key.get()) == 1);
  SSL_CTX_set_num_tickets(context, given.tickets);
  SSL_CTX_set_alpn_select_cb(context, &choose_protocol, nullptr);
  constexpr std::string_view id = "headrace";
  SSL_CTX_set_session_id_context(context, reinterpret_cast<const unsigned char*>(id.data()),
                                 static_cast<unsigned>(id.size()));
  if (!given.client_authority.empty()) {
    const auto trusted = certificate_of(given.client_authority);
    X509_STORE_add_cert(SSL_CTX_get_cert_store(context), trusted.get());
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  }
}

tls_server_end::tls_server_end(const tls_server& server)
    : ssl_(SSL_new(server.context())), in_(BIO_new(BIO_s_mem())), out_(BIO_new(BIO_s_mem())) {
  BIO_set_mem_eof_return(in_, -1);
  SSL_set_bio(ssl_.get(), in_, out_);
  SSL_set_accept_state(ssl_.get());
}

void tls_server_end::note(int outcome) {
  const int what = SSL_get_error(ssl_.get(), outcome);
  if (what == SSL_ERROR_WANT_READ || what == SSL_ERROR_ZERO_RETURN || what == SSL_ERROR_NONE)
    return;
  const char* const reason = ERR_reason_error_string(ERR_get_error());
  if (failure_.empty()) failure_ = reason != nullptr ? reason : "unknown";
  ERR_clear_error();
}

void tls_server_end::feed(std::string_view bytes) {
  HEADRACE_ASSERT(BIO_write(in_, bytes.data(), static_cast<int>(bytes.size())) ==
                  static_cast<int>(bytes.size()));
  if (connected() || !failure_.empty()) return;
  ERR_clear_error();
  note(SSL_do_handshake(ssl_.get()));
}

std::string tls_server_end::read() {
  std::string text;
  std::array<char, 4096> piece{};
  while (connected() && failure_.empty()) {
    ERR_clear_error();
    std::size_t count = 0;
    const int outcome = SSL_read_ex(ssl_.get(), piece.data(), piece.size(), &count);
    if (outcome != 1) {
      note(outcome);
      break;
    }
    text.append(piece.data(), count);
  }
  return text;
}

void tls_server_end::write(std::string_view bytes) {
  ERR_clear_error();
  std::size_t count = 0;
  if (!bytes.empty()) note(SSL_write_ex(ssl_.get(), bytes.data(), bytes.size(), &count));
}

void tls_server_end::close_notify() {
  ERR_clear_error();
  if (connected()) SSL_shutdown(ssl_.get());
}

void tls_server_end::update_key() {
  HEADRACE_ASSERT(SSL_key_update(ssl_.get(), SSL_KEY_UPDATE_REQUESTED) == 1);
  note(SSL_do_handshake(ssl_.get()));
}

void tls_server_end::send_ticket() {
  HEADRACE_ASSERT(SSL_new_session_ticket(ssl_.get()) == 1);
  note(SSL_do_handshake(ssl_.get()));
}

void tls_server_end::renegotiate() {
  HEADRACE_ASSERT(SSL_renegotiate(ssl_.get()) == 1);
  note(SSL_do_handshake(ssl_.get()));
}

std::string tls_server_end::take() {
  std::string bytes(BIO_ctrl_pending(out_), '\0');
  if (!bytes.empty()) BIO_read(out_, bytes.data(), static_cast<int>(bytes.size()));
  return bytes;
}

bool tls_server_end::finished() const noexcept {
  return (SSL_get_shutdown(ssl_.get()) & SSL_RECEIVED_SHUTDOWN) != 0;
}

std::string tls_server_end::server_name() const {
  const char* const name = SSL_get_servername(ssl_.get(), TLSEXT_NAMETYPE_host_name);
  return name != nullptr ? name : "";
}

std::string tls_server_end::protocol() const {
  const unsigned char* name = nullptr;
  unsigned size = 0;
  SSL_get0_alpn_selected(ssl_.get(), &name, &size);
  return {reinterpret_cast<const char*>(name), size};
}

std::string tls_server_end::client_name() const {
  const X509* const certificate = SSL_get0_peer_certificate(ssl_.get());
  if (certificate == nullptr) return {};
  std::array<char, 128> name{};
  X509_NAME_get_text_by_NID(X509_get_subject_name(certificate), NID_commonName, name.data(),
                            static_cast<int>(name.size()));
  return name.data();
}

}  // namespace headrace::test
