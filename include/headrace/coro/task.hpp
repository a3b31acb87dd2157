#pragma once

#include <headrace/base/assert.hpp>
#include <headrace/coro/environment.hpp>

#include <coroutine>
#include <exception>
#include <optional>
#include <type_traits>
#include <utility>
#include <variant>

namespace headrace {

template <class T = void>
class task;

namespace detail {

struct task_final {
  [[nodiscard]] bool await_ready() const noexcept { return false; }
  template <class Promise>
  std::coroutine_handle<> await_suspend(std::coroutine_handle<Promise> finished) noexcept {
    return finished.promise().continuation();
  }
  void await_resume() const noexcept {}
};

class task_promise_base : public promise_environment {
 public:
  [[nodiscard]] std::suspend_always initial_suspend() const noexcept { return {}; }
  [[nodiscard]] task_final final_suspend() const noexcept { return {}; }

  [[nodiscard]] std::coroutine_handle<> continuation() const noexcept { return continuation_; }
  void set_continuation(std::coroutine_handle<> next) noexcept { continuation_ = next; }

 private:
  std::coroutine_handle<> continuation_ = std::noop_coroutine();
};

template <class T>
class task_promise final : public task_promise_base {
 public:
  [[nodiscard]] task<T> get_return_object() noexcept;

  template <class U>
    requires std::constructible_from<T, U&&>
  void return_value(U&& value) {
    outcome_.template emplace<1>(std::forward<U>(value));
  }
  void unhandled_exception() noexcept { outcome_.template emplace<2>(std::current_exception()); }

  [[nodiscard]] T take() {
    if (outcome_.index() == 2) std::rethrow_exception(std::get<2>(std::move(outcome_)));
    HEADRACE_ASSERT(outcome_.index() == 1);
    return std::move(*std::get_if<1>(&outcome_));
  }

 private:
  std::variant<std::monostate, T, std::exception_ptr> outcome_;
};

template <>
class task_promise<void> final : public task_promise_base {
 public:
  [[nodiscard]] task<void> get_return_object() noexcept;

  void return_void() noexcept {}
  void unhandled_exception() noexcept { failure_ = std::current_exception(); }

  void take() {
    if (failure_) std::rethrow_exception(std::move(failure_));
  }

 private:
  std::exception_ptr failure_;
};

}  // namespace detail

/// A lazy coroutine that gives one value or throws.
///
/// Starts when it is awaited, once, on the thread that awaits it, and inherits the awaiter's
/// environment. Resumes the awaiter by symmetric transfer, so that a chain of tasks needs no stack.
/// Move-only; a started task must finish before it is destroyed (stop it through the environment
/// and await it), one that was never started may be dropped.
///
///     task<std::size_t> size(range_source& source) { co_return co_await source.stat(); }
template <class T>
class [[nodiscard]] task {
 public:
  using promise_type = detail::task_promise<T>;
  using value_type = T;

  task() noexcept = default;
  task(task&& other) noexcept : coroutine_(std::exchange(other.coroutine_, {})) {}
  task& operator=(task&& other) noexcept {
    if (this != &other) {
      destroy();
      coroutine_ = std::exchange(other.coroutine_, {});
    }
    return *this;
  }
  ~task() { destroy(); }

  explicit operator bool() const noexcept { return static_cast<bool>(coroutine_); }

  class awaiter {
   public:
    explicit awaiter(std::coroutine_handle<promise_type> coroutine) noexcept
        : coroutine_(coroutine) {}
    awaiter(std::coroutine_handle<promise_type> coroutine, environment given) noexcept
        : coroutine_(coroutine), given_(std::move(given)) {}

    [[nodiscard]] bool await_ready() const noexcept { return false; }

    template <class Promise>
    std::coroutine_handle<> await_suspend(std::coroutine_handle<Promise> awaiting) noexcept {
      auto& promise = coroutine_.promise();
      promise.set_continuation(awaiting);
      promise.set_environment(given_ ? std::move(*given_) : detail::environment_of(awaiting));
      return coroutine_;
    }

    T await_resume() { return coroutine_.promise().take(); }

   private:
    std::coroutine_handle<promise_type> coroutine_;
    std::optional<environment> given_;
  };

  [[nodiscard]] awaiter operator co_await() && noexcept {
    HEADRACE_ASSERT(coroutine_);
    return awaiter(coroutine_);
  }

  /// Awaits with this environment instead of the awaiter's. The task must not move to another
  /// executor than the awaiter's unless it comes back before it finishes: prefer `on` and
  /// `with_stop`.
  [[nodiscard]] awaiter under(environment given) && noexcept {
    HEADRACE_ASSERT(coroutine_);
    return awaiter(coroutine_, std::move(given));
  }

 private:
  friend promise_type;
  explicit task(std::coroutine_handle<promise_type> coroutine) noexcept : coroutine_(coroutine) {}

  void destroy() noexcept {
    if (coroutine_) coroutine_.destroy();
  }

  std::coroutine_handle<promise_type> coroutine_;
};

namespace detail {

template <class T>
task<T> task_promise<T>::get_return_object() noexcept {
  return task<T>(std::coroutine_handle<task_promise>::from_promise(*this));
}

inline task<void> task_promise<void>::get_return_object() noexcept {
  return task<void>(std::coroutine_handle<task_promise>::from_promise(*this));
}

}  // namespace detail
}  // namespace headrace
