#pragma once

#include <headrace/base/export.hpp>
#include <headrace/base/result.hpp>
#include <headrace/coro/environment.hpp>
#include <headrace/io/buffer_sequence.hpp>
#include <headrace/io/endpoint.hpp>

#include <cstdint>
#include <optional>
#include <span>
#include <stop_token>

namespace headrace {

class io_context;

namespace detail {

struct descriptor;

enum class operation_kind : std::uint8_t { receive, send, connect, accept, poll, read_file };

/// The one envelope of everything that the kernel is asked to do: what, on which descriptor, with
/// which memory, and whom to resume. Lives in the frame of the awaiting coroutine, from suspension
/// to completion; both backends speak it.
///
/// Cancellation: a stop request, from any thread, posts to the loop, which asks the kernel to
/// cancel; the completion alone ends the operation, with whatever the kernel says (it may have
/// succeeded).
class HEADRACE_API operation {
 public:
  /// What is asked, as far as the kind needs it. What it points to stays valid until the
  /// completion.
  struct arguments {
    std::span<const iovec> buffers;     ///< receive, send, read_file
    std::uint64_t offset = 0;           ///< read_file
    const endpoint* address = nullptr;  ///< connect
    unsigned events = 0;                ///< poll: POLLIN, POLLOUT
    int registered = -1;  ///< read_file: the ring's buffer that the one of `buffers` is in
  };

  operation(io_context& context, descriptor* target, operation_kind kind, arguments wanted) noexcept
      : asked(wanted), context_(context), target_(target), kind_(kind) {}
  operation(const operation&) = delete;
  operation& operator=(const operation&) = delete;

  [[nodiscard]] operation_kind kind() const noexcept { return kind_; }
  [[nodiscard]] descriptor* target() const noexcept { return target_; }
  const arguments asked;

  // The backend's own.
  msghdr message{};
  bool queued = false;      ///< epoll: to be tried in the next round
  bool connecting = false;  ///< epoll: connect(2) has been called

  /// Called by the backend, once, on the loop's thread: a count, a descriptor, or minus an `errno`.
  void complete(int result) noexcept;

 protected:
  ~operation() = default;

  /// Starts the operation; false where it is over already (stopped before it began).
  bool start(environment given, std::coroutine_handle<> coroutine);

  [[nodiscard]] int raw_result() const noexcept { return result_; }
  [[nodiscard]] std::error_code code() const noexcept;
  [[nodiscard]] io_context& context() const noexcept { return context_; }

 private:
  struct on_stop {
    operation* stopped;
    void operator()() const noexcept;
  };
  struct cancel_item final : work_item {
    explicit cancel_item(operation& owner) noexcept : work_item(&run_cancel), target(owner) {}
    static void run_cancel(work_item& item) noexcept;
    operation& target;
  };

  void resume() noexcept;

  io_context& context_;
  descriptor* target_;
  operation_kind kind_;
  bool completed_ = false;
  bool cancel_posted_ = false;  ///< Written by the stop callback, read once the callback is gone.
  bool cancel_ran_ = false;
  int result_ = 0;
  environment environment_;
  std::coroutine_handle<> coroutine_;
  resume_item resume_;
  cancel_item cancel_item_{*this};
  std::optional<std::stop_callback<on_stop>> stop_callback_;
};

}  // namespace detail

/// Awaitable of one kernel operation; gives `io_result<T>`. A stop completes it with
/// `errc::cancelled`.
///
/// Awaiting it on another thread than its loop's is a broken invariant.
template <class T>
class [[nodiscard]] io_operation final : public detail::operation {
 public:
  using operation::operation;

  [[nodiscard]] bool await_ready() const noexcept { return false; }
  template <class Promise>
  bool await_suspend(std::coroutine_handle<Promise> handle) {
    return start(detail::environment_of(handle), handle);
  }
  io_result<T> await_resume() noexcept {
    if (raw_result() < 0) return failure{code()};
    if constexpr (std::is_void_v<T>) {
      return {};
    } else {
      return static_cast<T>(raw_result());
    }
  }
};

}  // namespace headrace
