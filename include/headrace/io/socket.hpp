#pragma once

#include <headrace/base/export.hpp>
#include <headrace/coro/task.hpp>
#include <headrace/io/buffer_sequence.hpp>
#include <headrace/io/endpoint.hpp>
#include <headrace/io/io_context.hpp>
#include <headrace/io/operation.hpp>

#include <memory>
#include <span>

namespace headrace {

/// A TCP socket on a loop.
///
/// Threads: the loop's own. One receive and one send may be under way at a time; none may be when
/// the socket is destroyed.
class HEADRACE_API socket {
 public:
  socket() noexcept;
  socket(socket&& other) noexcept;
  socket& operator=(socket&& other) noexcept;
  ~socket();

  /// An unconnected socket of `family` (AF_INET, AF_INET6), without Nagle's delay.
  [[nodiscard]] static io_result<socket> open(io_context& context, int family);

  /// A socket around a descriptor that this takes over, such as an accepted one.
  [[nodiscard]] static socket adopt(io_context& context, int descriptor);

  /// Connects. `address` must stay valid until then.
  [[nodiscard]] io_operation<void> connect(const endpoint& address);

  /// Receives up to the size of `destination` into it.
  ///
  /// Completes with the number of bytes, 0 at the end of the stream. Buffers and vectors must stay
  /// valid until then, also after a stop request: cancelling asks the kernel, and only the
  /// completion gives the memory back.
  ///
  ///     auto received = co_await peer.receive(buffers);
  [[nodiscard]] io_operation<std::size_t> receive(buffer_sequence destination);

  /// Sends from `source`; completes with the number of bytes that were taken, which may be fewer.
  [[nodiscard]] io_operation<std::size_t> send(buffer_sequence source);

  /// Sends all of `bytes`.
  [[nodiscard]] task<io_result<void>> send_all(std::span<const std::byte> bytes);

  /// Ends the sending side, or both.
  void shutdown_send() noexcept;
  void shutdown() noexcept;

  /// Closes at once with a reset instead of the orderly end. For tests of faults.
  void reset() noexcept;

  [[nodiscard]] bool is_open() const noexcept { return descriptor_ != nullptr; }
  [[nodiscard]] int native() const noexcept;
  [[nodiscard]] endpoint peer() const;
  [[nodiscard]] io_context& context() const noexcept { return *context_; }

 private:
  void close() noexcept;

  io_context* context_ = nullptr;
  std::unique_ptr<detail::descriptor> descriptor_;
};

/// A listening TCP socket. Threads: the loop's own.
class HEADRACE_API acceptor {
 public:
  /// Listens on `address`; port 0 takes a free one.
  [[nodiscard]] static io_result<acceptor> listen(io_context& context, const endpoint& address);
  acceptor(acceptor&& other) noexcept;
  acceptor& operator=(acceptor&& other) noexcept;
  ~acceptor();

  /// The next connection.
  [[nodiscard]] task<io_result<socket>> accept();

  /// Where it listens, with the real port.
  [[nodiscard]] endpoint local() const;

 private:
  acceptor(io_context& context, std::unique_ptr<detail::descriptor> descriptor) noexcept;

  io_context* context_;
  std::unique_ptr<detail::descriptor> descriptor_;
};

}  // namespace headrace
