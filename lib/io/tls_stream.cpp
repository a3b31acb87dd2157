#include <headrace/io/tls_stream.hpp>

#include "io/tls_failure.hpp"
#include "io/tls_terms.hpp"

#include <headrace/base/log.hpp>
#include <headrace/coro/async_condition.hpp>
#include <headrace/coro/with.hpp>

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

namespace headrace {
namespace {

using detail::make_tls_code;
using detail::tls_fault;

// What one receive of the transport may bring. It is decrypted while it is still in the processor's
// cache, so that handing it to OpenSSL costs less than OpenSSL's own calls for each record would.
constexpr std::size_t incoming_size = 256 * 1024;

// Tickets and key updates come one or two at a time. OpenSSL itself bounds empty records and
// warnings.
constexpr unsigned most_idle_messages = 64;

constexpr std::size_t send_step = 64 * 1024;

/// TLS over another stream. OpenSSL reads and writes by a BIO of ours, which never waits: reading
/// takes what the transport gave, writing fills a buffer that is sent afterwards.
class tls_stream final : public byte_stream {
 public:
  tls_stream(std::unique_ptr<byte_stream> transport, std::shared_ptr<tls_context> terms,
             std::string host)
      : transport_(std::move(transport)),
        terms_(std::move(terms)),
        party_{.host = std::move(host), .terms = &terms_->terms(), .refused = {}},
        incoming_(std::make_unique_for_overwrite<std::byte[]>(incoming_size)) {}
  tls_stream(const tls_stream&) = delete;
  tls_stream& operator=(const tls_stream&) = delete;
  ~tls_stream() override {
    // OpenSSL gives up the session of a connection that was not shut down. Ours needs no farewell:
    // whatever was asked has been answered, or nobody wants the answer.
    if (ssl_ != nullptr && secured_ && !failed_) SSL_set_shutdown(ssl_.get(), SSL_SENT_SHUTDOWN);
  }

  /// Before anything else, once.
  [[nodiscard]] task<result<void>> shake_hands();

  task<io_result<std::size_t>> receive(buffer_sequence destination) override;
  task<io_result<void>> send(std::span<const std::byte> bytes) override;
  io_result<std::size_t> try_receive(buffer_sequence destination) override;
  [[nodiscard]] const std::string& peer() const noexcept override { return transport_->peer(); }
  [[nodiscard]] bool stale() const noexcept override;

 private:
  struct bio_free {
    void operator()(BIO* bio) const noexcept { BIO_free(bio); }
  };

  static BIO_METHOD* bio_method();
  static int on_read(BIO* bio, char* data, int size);
  static int on_write(BIO* bio, const char* data, int size);
  static long on_control(BIO* bio, int command, long number, void* pointer);

  [[nodiscard]] bool prepare();
  [[nodiscard]] std::size_t pull(std::span<std::byte> into);
  [[nodiscard]] std::size_t take(std::span<std::byte> into) noexcept;
  [[nodiscard]] std::size_t decrypt(buffer_sequence destination);
  void note(int outcome);
  [[nodiscard]] task<io_result<void>> wait_for_more();
  [[nodiscard]] task<io_result<void>> flush();
  [[nodiscard]] error why_not_secured() const;

  std::unique_ptr<byte_stream> transport_;
  std::shared_ptr<tls_context> terms_;
  detail::tls_party party_;
  detail::ssl_pointer ssl_;

  // What the transport gave and OpenSSL has not taken yet: [begin_, end_).
  std::unique_ptr<std::byte[]> incoming_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  std::string first_bytes_;      ///< Of the peer's: tells what speaks there if it is not TLS.
  mutable bool trying_ = false;  ///< The transport may be asked for what it has.
  bool cut_ = false;             ///< The transport has ended.
  std::error_code lost_;         ///< The transport has failed.

  bool secured_ = false;   ///< The handshake is done.
  bool finished_ = false;  ///< By the peer's close_notify.
  std::error_code failed_;
  unsigned long openssl_code_ = 0;

  std::vector<std::byte> outgoing_;  ///< Encrypted, to be sent.
  std::vector<std::byte> on_wire_;   ///< Being sent.
  bool sending_ = false;
  std::mutex mutex_;  // the condition wants one; the loop's thread alone takes it
  async_condition sent_;
};

// ---- What OpenSSL calls -------------------------------------------------------------------------

BIO_METHOD* tls_stream::bio_method() {
  // For ever: connections come and go on every loop.
  static BIO_METHOD* const method = [] {
    BIO_METHOD* const made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "headrace");
    if (made == nullptr) return made;
    BIO_meth_set_read(made, &on_read);
    BIO_meth_set_write(made, &on_write);
    BIO_meth_set_ctrl(made, &on_control);
    return made;
  }();
  return method;
}

int tls_stream::on_read(BIO* bio, char* data, int size) {
  auto& self = *static_cast<tls_stream*>(BIO_get_data(bio));
  BIO_clear_retry_flags(bio);
  if (size <= 0) return 0;
  const auto count =
      self.pull(std::as_writable_bytes(std::span(data, static_cast<std::size_t>(size))));
  if (!self.secured_ && self.first_bytes_.size() < 8)
    self.first_bytes_.append(data, std::min<std::size_t>(count, 8));
  if (count > 0) return static_cast<int>(count);
  if (self.cut_) return 0;
  if (!self.lost_) BIO_set_retry_read(bio);
  return -1;
}

int tls_stream::on_write(BIO* bio, const char* data, int size) {
  auto& self = *static_cast<tls_stream*>(BIO_get_data(bio));
  BIO_clear_retry_flags(bio);
  const auto bytes = std::as_bytes(std::span(data, static_cast<std::size_t>(std::max(size, 0))));
  try {
    self.outgoing_.insert(self.outgoing_.end(), bytes.begin(), bytes.end());
  } catch (const std::bad_alloc&) {
    return -1;  // not through OpenSSL, which is C
  }
  return size;
}

long tls_stream::on_control(BIO* bio, int command, long /*number*/, void* /*pointer*/) {
  if (command == BIO_CTRL_FLUSH) return 1;
  if (command == BIO_CTRL_EOF) return static_cast<tls_stream*>(BIO_get_data(bio))->cut_ ? 1 : 0;
  return 0;
}

std::size_t tls_stream::take(std::span<std::byte> into) noexcept {
  const std::size_t count = std::min(into.size(), end_ - begin_);
  std::memcpy(into.data(), incoming_.get() + begin_, count);
  begin_ += count;
  return count;
}

/// Gives what was received. Where nobody may wait, asks the transport too. 0 where there is
/// nothing.
std::size_t tls_stream::pull(std::span<std::byte> into) {
  if (begin_ == end_ && trying_ && !cut_ && !lost_ && party_.idle_messages <= most_idle_messages) {
    const std::array<iovec, 1> buffers{iovec{incoming_.get(), incoming_size}};
    auto received = transport_->try_receive(buffers);
    if (received) {
      cut_ = *received == 0;
      begin_ = 0;
      end_ = *received;
    } else if (received.error() != std::errc::resource_unavailable_try_again &&
               received.error() != std::errc::operation_not_supported &&
               received.error() != std::errc::interrupted) {
      lost_ = received.error();
    }
  }
  return take(into);
}

// ---- Handshake ----------------------------------------------------------------------------------

/// Sets the connection up; false where OpenSSL cannot.
bool tls_stream::prepare() {
  ERR_clear_error();
  ssl_.reset(SSL_new(terms_->terms().context.get()));
  if (ssl_ == nullptr || bio_method() == nullptr) return false;
  std::unique_ptr<BIO, bio_free> bio(BIO_new(bio_method()));
  if (bio == nullptr) return false;
  BIO_set_data(bio.get(), this);
  BIO_set_init(bio.get(), 1);
  SSL* const ssl = ssl_.get();
  BIO* const both = bio.release();
  SSL_set_bio(ssl, both, both);
  SSL_set_connect_state(ssl);
  if (SSL_set_ex_data(ssl, detail::tls_party::index(), &party_) != 1) return false;
  X509_VERIFY_PARAM* const wanted = SSL_get0_param(ssl);
  if (endpoint::from_literal(party_.host, 0)) {
    if (X509_VERIFY_PARAM_set1_ip_asc(wanted, party_.host.c_str()) != 1) return false;
  } else {
    // Names of the alternative kind alone: the common name has been out of use for long.
    X509_VERIFY_PARAM_set_hostflags(
        wanted, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS | X509_CHECK_FLAG_NEVER_CHECK_SUBJECT);
    if (X509_VERIFY_PARAM_set1_host(wanted, party_.host.data(), party_.host.size()) != 1 ||
        SSL_set_tlsext_host_name(ssl, party_.host.c_str()) != 1) {
      return false;
    }
  }
  const auto known = terms_->terms().sessions.take(party_.host);
  // Not resumed is no error: the handshake is then a whole one.
  if (known != nullptr && SSL_set_session(ssl, known.get()) != 1) ERR_clear_error();
  return true;
}

error tls_stream::why_not_secured() const {
  if (kind_of(lost_) == errc::cancelled || kind_of(failed_) == errc::cancelled)
    return error(errc::cancelled, "stopped during the TLS handshake");
  const std::string where = "the TLS handshake with '" + party_.host + "'";
  if (party_.refused.reason == X509_V_OK && !first_bytes_.starts_with("HTTP/")) {
    if (lost_) return system_failure(lost_, "the connection broke in " + where);
    if (cut_ || finished_)
      return error(errc::connect_error, "the peer closed the connection in " + where);
    if (openssl_code_ == 0) return system_failure(failed_, "the connection broke in " + where);
  }
  return detail::to_error({party_.host, party_.refused, openssl_code_, first_bytes_});
}

task<result<void>> tls_stream::shake_hands() {
  if (party_.host.empty() || party_.host.find('\0') != std::string::npos || !prepare()) {
    const auto code = detail::take_openssl_error();
    co_return failure{error(errc::tls_error,
                            "TLS cannot be spoken with '" + party_.host + "'" +
                                (code != 0 ? ": " + detail::openssl_reason(code) : std::string()))
                          .with({.peer = peer()})};
  }
  while (!secured_) {
    ERR_clear_error();
    const int outcome = SSL_do_handshake(ssl_.get());
    if (outcome == 1) {
      secured_ = true;
    } else {
      note(outcome);
    }
    // Also what tells the peer why it failed.
    auto flushed = co_await flush();
    if (!flushed && !failed_) failed_ = flushed.error();
    if (!failed_ && !secured_) {
      auto more = co_await wait_for_more();
      if (!more) failed_ = more.error();
    }
    if (failed_ || finished_) co_return failure{why_not_secured().with({.peer = peer()})};
  }
  first_bytes_.clear();
  party_.idle_messages = 0;
  co_return result<void>();
}

// ---- Bytes --------------------------------------------------------------------------------------

/// What an outcome of OpenSSL other than success means.
void tls_stream::note(int outcome) {
  switch (SSL_get_error(ssl_.get(), outcome)) {
    case SSL_ERROR_WANT_READ:
      if (party_.idle_messages > most_idle_messages)
        failed_ = make_tls_code(tls_fault::idle_messages);
      break;
    case SSL_ERROR_ZERO_RETURN:
      finished_ = true;
      break;
    default:
      openssl_code_ = detail::take_openssl_error();
      if (lost_) {
        failed_ = lost_;
      } else if (cut_) {
        failed_ = make_tls_code(tls_fault::cut);
      } else {
        failed_ = make_tls_code(openssl_code_);
      }
  }
}

/// Decrypts what is there into `destination`: the count. Where it is 0, `finished_` or `failed_`
/// may say why; otherwise more has to arrive.
std::size_t tls_stream::decrypt(buffer_sequence destination) {
  std::size_t total = 0;
  ERR_clear_error();
  for (const iovec& into : destination) {
    auto rest = std::span(static_cast<std::byte*>(into.iov_base), into.iov_len);
    while (!rest.empty()) {
      std::size_t count = 0;
      const int outcome = SSL_read_ex(ssl_.get(), rest.data(), rest.size(), &count);
      if (outcome != 1) {
        note(outcome);
        return total;
      }
      party_.idle_messages = 0;
      rest = rest.subspan(count);
      total += count;
    }
  }
  return total;
}

task<io_result<std::size_t>> tls_stream::receive(buffer_sequence destination) {
  const bool stopped = co_await stop_requested();
  if (stopped) co_return failure{make_error_code(errc::cancelled)};
  while (!failed_ && !finished_) {
    const std::size_t count = decrypt(destination);
    if (!outgoing_.empty()) {
      auto flushed = co_await flush();
      if (!flushed && !failed_) failed_ = flushed.error();
    }
    // What came before a failure is given first.
    if (count > 0) co_return count;
    if (failed_ || finished_) break;
    auto more = co_await wait_for_more();
    if (!more) failed_ = more.error();
  }
  if (failed_) co_return failure{failed_};
  co_return std::size_t{0};
}

io_result<std::size_t> tls_stream::try_receive(buffer_sequence destination) {
  std::size_t count = 0;
  if (!failed_ && !finished_) {
    trying_ = true;
    count = decrypt(destination);
    trying_ = false;
  }
  if (count > 0) return count;
  if (failed_) return failure{failed_};
  if (finished_) return std::size_t{0};
  return failure{std::error_code(EAGAIN, std::system_category())};
}

task<io_result<void>> tls_stream::wait_for_more() {
  if (begin_ != end_ || cut_ || lost_) co_return io_result<void>();
  const std::array<iovec, 1> buffers{iovec{incoming_.get(), incoming_size}};
  auto received = co_await transport_->receive(buffers);
  if (!received) {
    lost_ = received.error();
    co_return failure{lost_};
  }
  cut_ = *received == 0;
  begin_ = 0;
  end_ = *received;
  co_return io_result<void>();
}

task<io_result<void>> tls_stream::send(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    if (failed_) co_return failure{failed_};
    ERR_clear_error();
    std::size_t count = 0;
    const int outcome =
        SSL_write_ex(ssl_.get(), bytes.data(), std::min(bytes.size(), send_step), &count);
    if (outcome != 1) {
      note(outcome);
      if (!failed_) failed_ = make_tls_code(tls_fault::broken);
      co_return failure{failed_};
    }
    bytes = bytes.subspan(count);
    auto flushed = co_await flush();
    if (!flushed) {
      // Part of a record may be on the wire: nothing can follow it.
      failed_ = flushed.error();
      co_return failure{failed_};
    }
  }
  co_return io_result<void>();
}

/// Sends what was encrypted. A receive may have to send too, an answer to a key update: one of both
/// sends, and the other one waits for it.
task<io_result<void>> tls_stream::flush() {
  while (!outgoing_.empty() || sending_) {
    if (sending_) {
      std::unique_lock lock(mutex_);
      const bool notified = co_await sent_.wait(lock);
      if (!notified) co_return failure{make_error_code(errc::cancelled)};
      if (failed_) co_return failure{failed_};
      continue;
    }
    sending_ = true;
    on_wire_.swap(outgoing_);
    outgoing_.clear();
    auto sent = co_await transport_->send(on_wire_);
    sending_ = false;
    {
      async_condition::wake_list woken;
      const std::lock_guard lock(mutex_);
      sent_.notify_all(woken);
    }
    if (!sent) co_return failure{sent.error()};
  }
  co_return io_result<void>();
}

bool tls_stream::stale() const noexcept {
  if (failed_ || finished_ || cut_ || lost_) return true;
  // Servers send tickets whenever they like: they are not a word unasked. Where the transport can
  // only wait, nothing is known beyond what it gave.
  trying_ = true;
  ERR_clear_error();
  char first = 0;
  std::size_t count = 0;
  const int outcome = SSL_peek_ex(ssl_.get(), &first, 1, &count);
  const bool nothing = outcome != 1 && SSL_get_error(ssl_.get(), outcome) == SSL_ERROR_WANT_READ &&
                       party_.idle_messages <= most_idle_messages;
  trying_ = false;
  ERR_clear_error();
  return !nothing;
}

/// As it is checked and sent: without the brackets of an address, or the dot at the end of a name.
std::string checked_name(std::string host) {
  if (host.size() > 2 && host.front() == '[' && host.back() == ']')
    host = host.substr(1, host.size() - 2);
  if (host.size() > 1 && host.back() == '.') host.pop_back();
  return host;
}

task<result<std::unique_ptr<byte_stream>>> secure_now(std::unique_ptr<byte_stream> transport,
                                                      std::shared_ptr<tls_context> terms,
                                                      std::string host) {
  auto made = std::make_unique<tls_stream>(std::move(transport), std::move(terms),
                                           checked_name(std::move(host)));
  auto shaken = co_await made->shake_hands();
  if (!shaken) co_return failure{std::move(shaken).error()};
  co_return std::unique_ptr<byte_stream>(std::move(made));
}

}  // namespace

task<result<std::unique_ptr<byte_stream>>> secure(io_context& context,
                                                  std::unique_ptr<byte_stream> transport,
                                                  std::shared_ptr<tls_context> terms,
                                                  std::string host,
                                                  std::chrono::nanoseconds limit) {
  const error late(errc::timeout, "the TLS handshake with '" + host + "' took too long",
                   {.peer = transport->peer()});
  auto shaking = detail::limited(
      context, limit, secure_now(std::move(transport), std::move(terms), std::move(host)));
  auto outcome = co_await std::move(shaking);
  if (!outcome.done && outcome.late) co_return failure{late};
  co_return std::move(outcome.done);
}

}  // namespace headrace
