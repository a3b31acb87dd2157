#pragma once

#include <headrace/base/export.hpp>
#include <headrace/coro/task.hpp>
#include <headrace/io/socket.hpp>

#include <memory>
#include <span>
#include <string>
#include <vector>

namespace headrace {

/// A connection's bytes: plain TCP, or TLS over another of them, behind the same functions.
///
/// Threads: the loop's own. One receive and one send at a time. Cancellation: the environment's
/// stop token, with `errc::cancelled`; a stream is not usable after that.
class HEADRACE_API byte_stream {
 public:
  virtual ~byte_stream() = default;

  /// Receives at least one byte into `destination` and gives the count, 0 at the end of the stream.
  [[nodiscard]] virtual task<io_result<std::size_t>> receive(buffer_sequence destination) = 0;

  /// Sends all of `bytes`, which must stay valid until then.
  [[nodiscard]] virtual task<io_result<void>> send(std::span<const std::byte> bytes) = 0;

  /// Receives into `destination` what is there already, without waiting: the count, 0 at the end of
  /// the stream. `EAGAIN` where nothing is there, `EOPNOTSUPP` where the stream can only wait, as
  /// this one does. Not while a `receive` is under way.
  [[nodiscard]] virtual io_result<std::size_t> try_receive(buffer_sequence destination);

  /// The address of the peer, for messages.
  [[nodiscard]] virtual const std::string& peer() const noexcept = 0;

  /// Whether the peer has sent something, or has gone, while nothing was asked of it: then an idle
  /// connection is of no more use.
  [[nodiscard]] virtual bool stale() const noexcept = 0;
};

/// The stream of a connected socket.
[[nodiscard]] HEADRACE_API std::unique_ptr<byte_stream> make_tcp_stream(socket connected);

/// Connects to the first of `addresses` that answers, one after the other, each within `limit`. The
/// error is the last one's.
[[nodiscard]] HEADRACE_API task<io_result<std::unique_ptr<byte_stream>>> connect_tcp(
    io_context& context, std::vector<endpoint> addresses, std::chrono::nanoseconds limit);

}  // namespace headrace
