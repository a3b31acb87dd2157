#pragma once

#include <headrace/coro/sync_wait.hpp>
#include <headrace/coro/with.hpp>
#include <headrace/io/blocking_pool.hpp>
#include <headrace/io/io_context.hpp>

#include <atomic>
#include <chrono>
#include <exception>
#include <optional>
#include <thread>
#include <utility>

namespace headrace::test {

/// A loop on a thread of its own, with helper threads, over the backend that `HEADRACE_IO` names.
///
///     test::loop_thread loop;
///     const int answer = loop.run(ask(loop.context()));
class loop_thread {
 public:
  loop_thread() : loop_thread(io_backend_from_environment().value()) {}
  explicit loop_thread(io_backend backend) : thread_([this, backend] { serve(backend); }) {
    while (state_.load(std::memory_order_acquire) == state::starting) std::this_thread::yield();
    if (state_.load(std::memory_order_acquire) == state::failed) {
      thread_.join();
      std::rethrow_exception(failure_);
    }
  }
  loop_thread(const loop_thread&) = delete;
  loop_thread& operator=(const loop_thread&) = delete;
  /// Stops the loop and joins its thread. Everything started on it must have ended.
  ~loop_thread() {
    context_->stop();
    thread_.join();
  }

  [[nodiscard]] io_context& context() noexcept { return *context_; }
  [[nodiscard]] std::thread::id id() const noexcept { return thread_.get_id(); }

  /// Runs `work` on the loop and blocks until it has ended. After `limit` it is stopped, and
  /// `errc::timeout` is thrown: a test that would hang fails instead.
  template <class T>
  T run(task<T> work, std::chrono::seconds limit = std::chrono::seconds(60)) {
    return sync_wait(with_timeout(limit, on(*context_, std::move(work))));
  }

 private:
  enum class state { starting, running, failed };

  void serve(io_backend backend) {
    std::optional<io_context> context;
    try {
      context.emplace(io_context::options{.backend = backend, .helpers = &helpers_});
    } catch (...) {
      failure_ = std::current_exception();
      state_.store(state::failed, std::memory_order_release);
      return;
    }
    context_ = &*context;
    state_.store(state::running, std::memory_order_release);
    context->run();
  }

  blocking_pool helpers_{2};
  io_context* context_ = nullptr;
  std::exception_ptr failure_;
  std::atomic<state> state_{state::starting};
  std::thread thread_;
};

}  // namespace headrace::test
