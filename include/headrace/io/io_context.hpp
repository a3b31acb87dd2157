#pragma once

#include <headrace/base/export.hpp>
#include <headrace/coro/executor.hpp>
#include <headrace/io/operation.hpp>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <thread>

namespace headrace {

class blocking_pool;

namespace detail {
class idle_operation;
}

/// How a loop talks to the kernel.
enum class io_backend : std::uint8_t { automatic, uring, epoll };

/// `uring`, `epoll`, `auto`.
[[nodiscard]] HEADRACE_API std::string_view to_string(io_backend backend) noexcept;

/// What the environment variable `HEADRACE_IO` says: `uring`, `epoll`, `auto`; automatic where it
/// is not set. Anything else is `invalid_request`.
[[nodiscard]] HEADRACE_API result<io_backend> io_backend_from_environment();

/// The backend that `automatic` means on this machine: io_uring where the kernel gives a ring,
/// epoll where it is refused (the default seccomp profiles of container runtimes, gVisor,
/// `kernel.io_uring_disabled`). Logged once a process.
[[nodiscard]] HEADRACE_API io_backend resolve_backend(io_backend wanted);

namespace detail {
class io_engine;
}

/// A loop: sockets, files, timers and posted work of one thread, over io_uring or epoll.
///
/// Created, run and destroyed on its own thread; `post` and `stop` alone are safe from any thread.
/// Everything that was started on it must be finished before it is destroyed.
///
///     io_context loop;
///     async_scope scope;
///     scope.spawn(loop, serve(loop));
///     loop.run();                       // until stop()
///
/// A loop that is *hosted* has no thread of its own: the event loop of somebody else, on whose
/// thread it was created, watches `host_descriptor()` and calls `poll()`.
///
///     io_context loop(options);
///     watch(loop.host_descriptor());    // readable, or `next` has come:
///     auto next = loop.poll();
class HEADRACE_API io_context final : public executor, public timer_service {
 public:
  struct options {
    io_backend backend = io_backend::automatic;
    blocking_pool* helpers = nullptr;  ///< Reads files under epoll, which has no asynchronous ones;
                                       ///< must outlive the loop.
  };

  explicit io_context(options given);
  ~io_context();
  io_context(const io_context&) = delete;
  io_context& operator=(const io_context&) = delete;

  /// Runs until `stop` is called. Waits nowhere but in the kernel's ring or in epoll. A hosted loop
  /// may be run, too, while its host stands still: to finish what is left.
  void run();

  /// Makes the loop a hosted one and gives the descriptor that its host has to watch: readable
  /// whenever `poll` has something to do. It stays the loop's, is only watched for reading, never
  /// read, and may be watched by way of a duplicate. Before anything is started on the loop; later
  /// calls give the same. Throws where the kernel refuses. Threads: the loop's own.
  [[nodiscard]] int host_descriptor();

  /// Runs what there is to run, without waiting: posted work, timers that are due, completions, and
  /// a piece of the work for idle times. Gives when to call it again though the descriptor is not
  /// readable: at once (a time in the past), at a time, or never (empty).
  ///
  /// What is started or posted between two calls makes the descriptor readable; so does a timer
  /// that is started then. Hosted loops alone, on their thread, not from what it runs.
  std::optional<steady_time> poll();

  /// Makes `run` return soon; one that begins later returns at once. Threads: any.
  void stop() noexcept;

  /// Threads: any.
  void post(work_item& item) noexcept override;

  /// Runs `item` when the loop has nothing else to do, and after `idle_patience` at the latest: for
  /// work that only pays where time is left over. Threads: the loop's own.
  void post_when_idle(work_item& item);

  [[nodiscard]] timer_service* timers() noexcept override { return this; }
  void start_timer(timer_item& item, steady_time deadline) override {
    HEADRACE_ASSERT(on_this_thread());
    timers_.start(item, deadline);
    wake_host();
  }
  void cancel_timer(timer_item& item) noexcept override {
    HEADRACE_ASSERT(!item.pending() || on_this_thread());
    timers_.cancel(item);
  }
  [[nodiscard]] steady_time now() const noexcept override { return real_clock().now(); }

  [[nodiscard]] io_backend backend() const noexcept { return backend_; }
  [[nodiscard]] blocking_pool* helpers() const noexcept { return helpers_; }

  /// Whether the caller is on the loop's thread.
  [[nodiscard]] bool on_this_thread() const noexcept {
    return std::this_thread::get_id() == thread_;
  }

  /// Flags for `socket(2)` and `accept4(2)` that the backend needs.
  [[nodiscard]] int socket_flags() const noexcept;

  /// The backend behind this loop; for the io room alone.
  [[nodiscard]] detail::io_engine& engine() noexcept { return *engine_; }

  /// Something was started: a host that is not inside `poll` has to call it. For the io room alone.
  void wake_host() noexcept {
    if (hosted_ && !turning_ && !host_woken_) signal_host();
  }

 private:
  bool turn(bool may_wait);
  bool run_posted();
  void run_idle() noexcept;
  void signal_host() noexcept;

  static constexpr std::chrono::milliseconds idle_patience{20};

  const std::thread::id thread_ = std::this_thread::get_id();
  io_backend backend_;
  blocking_pool* helpers_;
  std::unique_ptr<detail::io_engine> engine_;
  timer_queue timers_;
  work_queue local_;                         ///< posted by the loop's own thread
  std::atomic<work_item*> remote_{nullptr};  ///< posted by others: a stack, newest first
  std::atomic<unsigned> posting_{0};         ///< other threads inside `post`
  work_queue idle_;                          ///< for when there is nothing else to do
  steady_time idle_since_{};                 ///< when the first of them came, or the last one ran
  bool stopping_ = false;
  bool hosted_ = false;
  int host_descriptor_ = -1;
  bool turning_ = false;     ///< inside `poll` or `run`
  bool host_woken_ = false;  ///< the descriptor is readable for what was started since `poll`
  struct stop_item;
  std::unique_ptr<stop_item> stop_;
};

namespace detail {

/// Resumes when a loop has nothing else to do.
class [[nodiscard]] idle_operation final {
 public:
  explicit idle_operation(io_context& context) noexcept : context_(context) {}

  [[nodiscard]] bool await_ready() const noexcept { return false; }
  void await_suspend(std::coroutine_handle<> handle) {
    resume_.coroutine = handle;
    context_.post_when_idle(resume_);
  }
  void await_resume() const noexcept {}

 private:
  io_context& context_;
  resume_item resume_;
};

}  // namespace detail

/// Suspends until `context`, on whose thread this is awaited, has nothing else to do; see
/// `io_context::post_when_idle`.
[[nodiscard]] inline detail::idle_operation idle(io_context& context) noexcept {
  return detail::idle_operation(context);
}

}  // namespace headrace
