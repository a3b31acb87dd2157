#pragma once

#include <headrace/base/export.hpp>
#include <headrace/base/result.hpp>
#include <headrace/coro/task.hpp>
#include <headrace/http/http_origin.hpp>
#include <headrace/http/http_request.hpp>
#include <headrace/http/http_response_head.hpp>
#include <headrace/io/buffer_sequence.hpp>
#include <headrace/io/byte_stream.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <system_error>
#include <vector>

namespace headrace {

namespace detail {
class response_parser;
struct http_proxy;
}  // namespace detail

/// One HTTP/1.1 connection: exchange after exchange, one at a time. One attempt each, no policy:
/// limits on time, retries and redirects are the caller's.
///
///     auto head = co_await connection.send(std::move(request));
///     if (!head) co_return failure{head.error()};
///     while (wanted > 0) {
///       auto received = co_await connection.receive_body(destination);
///       …                                              // 0: the end
///     }
///
/// Threads: the loop's own. Cancellation: the environment's stop token, with `errc::cancelled`.
/// After a failure the connection is of no more use (`reusable()` is false, further calls fail), an
/// `invalid_request` excepted. No call may be under way when it is destroyed.
///
/// Errors carry the peer's address and, once it is known, the status: `connect_error` where the
/// connection broke before the whole head was there, `truncated` where it broke in the body,
/// `protocol_error` where the peer broke HTTP.
class HEADRACE_API http_connection {
 public:
  explicit http_connection(std::unique_ptr<byte_stream> stream);
  ~http_connection();
  http_connection(const http_connection&) = delete;
  http_connection& operator=(const http_connection&) = delete;

  /// From now on the peer is `proxy`, which forwards what is sent to `origin`, in plain HTTP:
  /// targets take the absolute form, the proxy's own credentials go along, and its 407 is an
  /// `access_denied` of `send`. Between exchanges only.
  void forward_through(std::shared_ptr<const detail::http_proxy> proxy, const http_origin& origin);

  /// Sends `request` and receives the head of its answer; 1xx answers before it are skipped.
  ///
  /// The body of the answer before must have been consumed (`reusable()`, or a new connection):
  /// otherwise `internal`. A connection on which the peer has closed or has sent something before
  /// it was asked is a `connect_error`, found before anything is sent.
  ///
  /// `protocol_error`: more than 64 KiB of head or 100 fields, more than 8 answers of 1xx, 101, a
  /// version other than 1.0 and 1.1, a line end that is not CR LF, a folded or malformed field, two
  /// lengths, a length with Transfer-Encoding, a Transfer-Encoding other than `chunked`, a
  /// successful answer with a content encoding.
  [[nodiscard]] task<result<http_response_head>> send(http_request request);

  /// Receives bytes of the body into `destination`, at most its size; completes with how many, 0 at
  /// the end of the body.
  ///
  /// May give fewer than there is room for: ask again. Never takes a byte from beyond the body.
  /// What came along with the head is copied; everything else is received where it belongs, chunked
  /// bodies excepted. `destination`, vectors and memory, must stay valid until this completes, also
  /// after a stop request. An empty one gives 0 without meaning anything.
  ///
  /// `truncated` where the peer closes or resets before the end ("connection closed after N of M
  /// bytes").
  [[nodiscard]] task<result<std::size_t>> receive_body(buffer_sequence destination);

  /// Receives the whole rest of the body: a listing, what a server says about an error. More than
  /// `limit` bytes are a `protocol_error`, after which the connection is not reusable. The body of
  /// an error that is encoded is skipped and comes out empty.
  [[nodiscard]] task<result<std::string>> read_text(std::size_t limit);

  /// The stream, for what is spoken on it after a CONNECT that was answered with 2xx (to which
  /// there is no body, whatever the head says). `protocol_error` where the peer has said more than
  /// that. The connection may then only be destroyed.
  [[nodiscard]] result<std::unique_ptr<byte_stream>> release();

  /// Whether another request may be sent: nothing is under way, the body is wholly consumed, both
  /// sides keep the connection, and nothing came after the body. A new connection is reusable.
  [[nodiscard]] bool reusable() const noexcept { return state_ == state::ready; }

  /// Whether the body of the current answer is wholly consumed.
  [[nodiscard]] bool body_complete() const noexcept {
    return state_ == state::ready || state_ == state::finished;
  }

  /// Whether no exchange has been finished on it yet. A failure of `send` on a connection that is
  /// not fresh, with no byte of an answer (`answer_started()`), is what a keep-alive that ran out
  /// looks like: it earns one retry at once.
  [[nodiscard]] bool fresh() const noexcept { return exchanges_ == 0; }

  /// Whether any byte of an answer to the current request has arrived.
  [[nodiscard]] bool answer_started() const noexcept { return answer_started_; }

  /// Whether the peer has closed or spoken unasked: an idle connection is then of no more use. One
  /// system call.
  [[nodiscard]] bool stale() const noexcept { return stream_->stale(); }

  /// The address of the peer, for messages.
  [[nodiscard]] const std::string& peer() const noexcept { return stream_->peer(); }

  /// All bytes received on this connection, heads and framing included: what a stall limit watches.
  [[nodiscard]] std::uint64_t bytes_received() const noexcept { return bytes_received_; }

  /// The bytes of the current body that `receive_body` has given.
  [[nodiscard]] std::uint64_t body_received() const noexcept { return body_received_; }

 private:
  enum class state : std::uint8_t { ready, exchanging, body, finished, tunnel, failed };
  enum class framing : std::uint8_t { none, length, chunked, close };

  [[nodiscard]] failure<error> fail(const error& reason);
  [[nodiscard]] failure<error> fail_in_head(std::error_code code);
  [[nodiscard]] failure<error> fail_in_body(std::error_code code);
  [[nodiscard]] failure<error> misused(const char* what) const;
  [[nodiscard]] error_context context() const;
  [[nodiscard]] std::span<const char> buffered() const noexcept;
  void begin_body(const http_response_head& head);
  void end_body() noexcept;
  [[nodiscard]] std::size_t take_buffered(buffer_sequence destination, std::size_t most) noexcept;
  [[nodiscard]] buffer_sequence cut(buffer_sequence destination, std::size_t most);
  [[nodiscard]] task<result<std::size_t>> receive_chunked(buffer_sequence destination);

  std::unique_ptr<byte_stream> stream_;
  std::unique_ptr<detail::response_parser> parser_;
  std::unique_ptr<std::byte[]> buffer_;  ///< Heads and chunks. Not used yet: [begin_, end_).
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  std::string wire_;            ///< The request; kept for its capacity.
  std::vector<iovec> vectors_;  ///< A destination that was cut; kept for its capacity.
  std::shared_ptr<const detail::http_proxy> proxy_;  ///< Whom the peer is, where it forwards.
  std::string target_prefix_;                        ///< What makes a target absolute for it.
  std::uint64_t exchanges_ = 0;
  std::uint64_t bytes_received_ = 0;
  std::uint64_t body_received_ = 0;
  std::uint64_t body_size_ = 0;  ///< With a length.
  int status_ = 0;
  state state_ = state::ready;
  framing framing_ = framing::none;
  bool keep_alive_ = true;
  bool encoded_ = false;  ///< The body, and nobody can read it.
  bool answer_started_ = false;
};

}  // namespace headrace
