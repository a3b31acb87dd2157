#pragma once

#include <headrace/coro/executor.hpp>

#include <concepts>
#include <coroutine>
#include <memory_resource>
#include <stop_token>
#include <utility>

namespace headrace {

/// What every headrace coroutine inherits from the headrace coroutine that awaits it.
///
/// Roots give it (`sync_wait`, `async_scope::spawn`, a front end's bridge); `with_stop`,
/// `with_timeout` and `on` change it for one task. I/O reads it when it suspends, so that no
/// function carries a stop parameter.
struct environment {
  headrace::executor* executor = nullptr;  ///< Where completions resume; null: where they happen.
  std::stop_token stop;                    ///< Completes I/O with `errc::cancelled`.
  std::pmr::memory_resource* allocator =
      std::pmr::get_default_resource();  ///< For what an operation must allocate.
};

namespace detail {

/// The part of a promise that carries an environment.
class promise_environment {
 public:
  [[nodiscard]] const headrace::environment& environment() const noexcept { return environment_; }
  void set_environment(headrace::environment environment) noexcept {
    environment_ = std::move(environment);
  }

 private:
  headrace::environment environment_;
};

template <class Promise>
concept has_environment = requires(const Promise& promise) {
  { promise.environment() } -> std::convertible_to<const environment&>;
};

/// The environment of the coroutine behind `handle`; a foreign coroutine has the empty one.
template <class Promise>
[[nodiscard]] environment environment_of(std::coroutine_handle<Promise> handle) {
  if constexpr (has_environment<Promise>) {
    return handle.promise().environment();
  } else {
    return {};
  }
}

struct read_environment {
  environment found;

  [[nodiscard]] bool await_ready() const noexcept { return false; }
  template <class Promise>
  bool await_suspend(std::coroutine_handle<Promise> handle) {
    found = environment_of(handle);
    return false;
  }
  [[nodiscard]] environment await_resume() noexcept { return std::move(found); }
};

/// Gives whether the environment's stop token has been triggered.
struct read_stop {
  bool requested = false;

  [[nodiscard]] bool await_ready() const noexcept { return false; }
  template <class Promise>
  bool await_suspend(std::coroutine_handle<Promise> handle) noexcept {
    if constexpr (has_environment<Promise>)
      requested = handle.promise().environment().stop.stop_requested();
    return false;
  }
  [[nodiscard]] bool await_resume() const noexcept { return requested; }
};

/// Resumes a coroutine by way of an executor.
struct resume_item : work_item {
  resume_item() noexcept : work_item(&resume) {}

  /// Resumes `handle` on `target`, at once where there is none.
  void resume_on(executor* target, std::coroutine_handle<> handle) noexcept {
    coroutine = handle;
    if (target != nullptr) {
      target->post(*this);
    } else {
      handle.resume();
    }
  }

  static void resume(work_item& item) noexcept {
    static_cast<resume_item&>(item).coroutine.resume();
  }

  std::coroutine_handle<> coroutine;
};

}  // namespace detail

/// The environment of the coroutine that awaits it: `auto environment = co_await
/// current_environment();`
[[nodiscard]] inline detail::read_environment current_environment() noexcept { return {}; }

/// Whether the coroutine that awaits it has been asked to stop: `const bool stop = co_await
/// stop_requested();`
[[nodiscard]] inline detail::read_stop stop_requested() noexcept { return {}; }

}  // namespace headrace
