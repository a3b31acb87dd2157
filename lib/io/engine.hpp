#pragma once

#include <headrace/base/clock.hpp>
#include <headrace/io/io_context.hpp>

#include <memory>
#include <optional>

namespace headrace::detail {

/// A file descriptor on a loop, with what the epoll backend has to know about it.
struct descriptor {
  int number = -1;
  operation* reading = nullptr;  ///< waits for readability
  operation* writing = nullptr;  ///< waits for writability
  // Edge-triggered readiness: true until the kernel says EAGAIN, true again with the next event.
  bool readable = true;
  bool writable = true;
  bool finished = false;  ///< the peer has hung up or failed (or sent urgent data): a short count
                          ///< says nothing about more
  bool watched = false;
};

/// What a backend does. Threads: the loop's own, `wake` excepted.
class io_engine {
 public:
  virtual ~io_engine() = default;

  /// Takes the operation and gives 0: `operation::complete` follows, never from inside this call.
  /// Or minus an `errno`, and nothing follows.
  [[nodiscard]] virtual int start(operation& started) = 0;

  /// Asks to end the operation early; its completion still follows, or has been called when this
  /// returns.
  virtual void cancel(operation& cancelled) noexcept = 0;

  /// Submits what was started, waits for completions until `until` (empty: for ever; in the past:
  /// not at all) and delivers them. Whether there were any.
  virtual bool wait(std::optional<steady_time> until) = 0;

  /// Ends a `wait`. Threads: any.
  virtual void wake() noexcept = 0;

  /// From now on a host polls: gives the descriptor that is readable whenever `wait` with a time in
  /// the past would deliver something, or `wake` was called. Once, before anything is started.
  [[nodiscard]] virtual int serve_host() = 0;

  /// Makes that descriptor unreadable until something new happens: before a host's turn.
  virtual void acknowledge_host() noexcept {}

  /// Closes. No operation may be under way on it.
  virtual void release(std::unique_ptr<descriptor> closed) noexcept = 0;

  /// SOCK_NONBLOCK where the backend needs it: io_uring would complete with EAGAIN instead of
  /// waiting.
  [[nodiscard]] virtual int socket_flags() const noexcept = 0;
};

/// Null where the kernel refuses a ring.
[[nodiscard]] std::unique_ptr<io_engine> make_uring_engine();
[[nodiscard]] std::unique_ptr<io_engine> make_epoll_engine(io_context& context);

/// Owns an eventfd.
class event_descriptor {
 public:
  event_descriptor();
  ~event_descriptor();
  event_descriptor(const event_descriptor&) = delete;
  event_descriptor& operator=(const event_descriptor&) = delete;

  [[nodiscard]] int number() const noexcept { return number_; }
  /// Threads: any.
  void signal() const noexcept;

 private:
  int number_;
};

}  // namespace headrace::detail
