#pragma once

#include <headrace/base/export.hpp>
#include <headrace/coro/task.hpp>
#include <headrace/coro/with.hpp>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

namespace headrace {

namespace detail {

/// The executor of a blocked caller: runs what is posted, and its timers, while the caller waits.
class HEADRACE_API blocking_executor final : public executor, public timer_service {
 public:
  void post(work_item& item) noexcept override;
  [[nodiscard]] timer_service* timers() noexcept override { return this; }
  void start_timer(timer_item& item, steady_time deadline) override {
    timers_.start(item, deadline);
  }
  void cancel_timer(timer_item& item) noexcept override { timers_.cancel(item); }
  [[nodiscard]] steady_time now() const noexcept override { return real_clock().now(); }

  /// Runs items until `finished` is set by one of them. Called by the thread that made the
  /// executor.
  void run_until(const bool& finished);

  /// Whether this is the blocked caller's thread.
  [[nodiscard]] bool here() const noexcept { return std::this_thread::get_id() == owner_; }

 private:
  const std::thread::id owner_ = std::this_thread::get_id();
  std::mutex mutex_;
  std::condition_variable ready_;
  work_queue items_;
  timer_queue timers_;
};

struct sync_root {
  struct promise_type final : promise_environment {
    [[nodiscard]] sync_root get_return_object() noexcept {
      return {std::coroutine_handle<promise_type>::from_promise(*this)};
    }
    [[nodiscard]] std::suspend_always initial_suspend() const noexcept { return {}; }
    [[nodiscard]] std::suspend_always final_suspend() const noexcept { return {}; }
    void return_void() const noexcept {}
    void unhandled_exception() const noexcept { std::terminate(); }  // the body catches everything
  };

  std::coroutine_handle<promise_type> coroutine;
};

template <class T>
struct sync_outcome {
  std::optional<std::conditional_t<std::is_void_v<T>, std::monostate, T>> value;
  std::exception_ptr failure;
  bool finished = false;
};

template <class T>
sync_root sync_run(task<T> work, sync_outcome<T>* outcome, blocking_executor* caller) {
  try {
    if constexpr (std::is_void_v<T>) {
      co_await std::move(work);
      outcome->value.emplace();
    } else {
      T value = co_await std::move(work);
      outcome->value.emplace(std::move(value));
    }
  } catch (...) {
    outcome->failure = std::current_exception();
  }
  // An awaitable of somebody else's may have resumed us elsewhere; the end belongs to the caller's
  // thread.
  co_await move_to_executor{caller->here() ? nullptr : caller};
  outcome->finished = true;
}

}  // namespace detail

/// Runs `work` to its end and blocks the caller, and the caller alone, until then. Gives its value
/// or throws its error.
///
/// `work` runs on the calling thread; what it awaits elsewhere (a model's stream, say) runs there.
/// Not to be called on a loop of the runtime.
///
///     headrace::model model = headrace::sync_wait(headrace::open(runtime, "s3://bucket/prefix"));
template <class T>
T sync_wait(task<T> work, std::stop_token stop = {}) {
  detail::blocking_executor here;
  detail::sync_outcome<T> outcome;
  auto root = detail::sync_run(std::move(work), &outcome, &here);
  root.coroutine.promise().set_environment({.executor = &here, .stop = std::move(stop)});
  root.coroutine.resume();
  here.run_until(outcome.finished);
  root.coroutine.destroy();
  if (outcome.failure) std::rethrow_exception(outcome.failure);
  if constexpr (!std::is_void_v<T>) return std::move(*outcome.value);
}

}  // namespace headrace
