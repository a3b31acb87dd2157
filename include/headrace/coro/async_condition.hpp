#pragma once

#include <headrace/base/export.hpp>
#include <headrace/coro/environment.hpp>

#include <mutex>
#include <optional>
#include <stop_token>

namespace headrace {

/// A condition variable for coroutines: waiting suspends the coroutine and blocks nobody.
///
/// The state that is waited for is guarded by the caller's mutex, as with
/// `std::condition_variable`. A waiter is resumed on its own executor; where that is an inline one,
/// resuming happens in the destructor of the `wake_list`, which therefore must run after the mutex
/// was released. Every waiter must be gone before the condition is destroyed.
///
///     std::unique_lock lock(mutex);                        wake_list woken;   // declared first,
///     destroyed last while (queue.empty()) {                              const std::lock_guard
///     lock(mutex);
///       const bool notified = co_await ready.wait(lock);   queue.push_back(value);
///       if (!notified) co_return cancelled();              ready.notify_one(woken);
///     }
///
/// The lock is released while the coroutine is suspended and is taken again on the thread that
/// resumes it.
class HEADRACE_API async_condition {
 public:
  class wait_operation;
  class wake_list;

  async_condition() = default;
  async_condition(const async_condition&) = delete;
  async_condition& operator=(const async_condition&) = delete;

  /// Suspends until notified (true) or until the environment's stop token is triggered (false).
  /// `lock` must be held.
  [[nodiscard]] wait_operation wait(std::unique_lock<std::mutex>& lock) noexcept;

  /// Suspends until notified, whatever the stop token says: for joins, which must see the end.
  [[nodiscard]] wait_operation wait_unstoppable(std::unique_lock<std::mutex>& lock) noexcept;

  /// Puts the longest waiting coroutine on `woken`. The mutex must be held.
  void notify_one(wake_list& woken) noexcept;

  /// Puts every waiting coroutine on `woken`. The mutex must be held.
  void notify_all(wake_list& woken) noexcept;

 private:
  void append(wait_operation& waiter) noexcept;
  void remove(wait_operation& waiter) noexcept;

  wait_operation* first_ = nullptr;
  wait_operation* last_ = nullptr;
};

/// Coroutines that were notified and are resumed when the list is destroyed, after the mutex was
/// released.
class async_condition::wake_list {
 public:
  wake_list() = default;
  wake_list(const wake_list&) = delete;
  wake_list& operator=(const wake_list&) = delete;
  ~wake_list();

 private:
  friend async_condition;
  wait_operation* first_ = nullptr;
  wait_operation** last_ = &first_;
};

class [[nodiscard]] async_condition::wait_operation {
 public:
  wait_operation(async_condition& condition, std::unique_lock<std::mutex>& lock,
                 bool stoppable) noexcept
      : condition_(condition), lock_(lock), stoppable_(stoppable) {}
  wait_operation(const wait_operation&) = delete;
  wait_operation& operator=(const wait_operation&) = delete;

  [[nodiscard]] bool await_ready() const noexcept { return false; }

  template <class Promise>
  bool await_suspend(std::coroutine_handle<Promise> handle) {
    environment_ = detail::environment_of(handle);
    coroutine_ = handle;
    return suspend();
  }

  bool await_resume();

 private:
  friend async_condition;
  friend wake_list;

  struct on_stop {
    wait_operation* waiter;
    void operator()() const noexcept { waiter->stopped(); }
  };

  enum class outcome : unsigned char { waiting, notified, stopped };

  bool suspend();
  void stopped() noexcept;
  void resume() noexcept { resume_.resume_on(environment_.executor, coroutine_); }

  async_condition& condition_;
  std::unique_lock<std::mutex>& lock_;
  const bool stoppable_;
  std::mutex* mutex_ = nullptr;
  environment environment_;
  std::coroutine_handle<> coroutine_;
  detail::resume_item resume_;
  std::optional<std::stop_callback<on_stop>> stop_callback_;
  wait_operation* next_ = nullptr;
  wait_operation* previous_ = nullptr;
  outcome outcome_ = outcome::waiting;
  bool suspended_ =
      false;  ///< Whoever decides the outcome resumes the coroutine only once this is set.
};

inline async_condition::wait_operation async_condition::wait(
    std::unique_lock<std::mutex>& lock) noexcept {
  return {*this, lock, true};
}

inline async_condition::wait_operation async_condition::wait_unstoppable(
    std::unique_lock<std::mutex>& lock) noexcept {
  return {*this, lock, false};
}

}  // namespace headrace
