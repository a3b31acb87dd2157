#pragma once

#include "event_executor.hpp"
#include "log_lines.hpp"
#include "to_python.hpp"

#include <headrace/coro/task.hpp>

#include <nanobind/nanobind.h>

#include <atomic>
#include <exception>
#include <memory>
#include <optional>
#include <stop_token>
#include <utility>
#include <variant>

namespace headrace::python {

namespace nb = nanobind;

/// Something that Python has asked the engine for, under way or finished.
///
/// The coroutine that does it holds it, and so does Python's handle, which asks it to stop where it
/// is dropped early. Whoever is last frees it, on any thread and without the GIL: by then it holds
/// no Python object.
class call {
 public:
  explicit call(std::stop_source stop) noexcept : stop_(std::move(stop)) {}
  call(const call&) = delete;
  call& operator=(const call&) = delete;
  virtual ~call() = default;

  /// Acquires: what the call has left behind can be read once this is true.
  [[nodiscard]] bool finished() const noexcept { return finished_.load(std::memory_order_acquire); }

  /// Threads: any, with the GIL or without.
  void request_stop() noexcept {
    std::stop_source kept = stop_;
    kept.request_stop();
  }
  [[nodiscard]] std::stop_token stop_token() const noexcept { return stop_.get_token(); }

  /// Has `callback()` called once the call has finished, by the owner of the executor; once it has,
  /// nothing. None: not any more. Needs the GIL.
  void notify(nb::object callback);

  /// What it has given, once; throws its error. Only once it has finished. Needs the GIL.
  [[nodiscard]] nb::object take() {
    hand_over_log_lines();
    return value();
  }

 protected:
  void finish() noexcept;

 private:
  [[nodiscard]] virtual nb::object value() = 0;

  std::stop_source stop_;
  nb::object when_finished_;          ///< Guarded by the GIL.
  std::atomic<bool> watched_{false};  ///< There is one: whether the end needs the GIL at all.
  std::atomic<bool> finished_{false};
};

namespace detail {

/// A coroutine that nobody awaits: frees itself at its end.
struct call_root {
  struct promise_type final : headrace::detail::promise_environment {
    [[nodiscard]] call_root get_return_object() noexcept {
      return {std::coroutine_handle<promise_type>::from_promise(*this)};
    }
    [[nodiscard]] std::suspend_always initial_suspend() const noexcept { return {}; }
    [[nodiscard]] std::suspend_never final_suspend() const noexcept { return {}; }
    void return_void() const noexcept {}
    void unhandled_exception() const noexcept { std::terminate(); }  // the body catches everything
  };

  std::coroutine_handle<promise_type> coroutine;
};

}  // namespace detail

template <class T>
class call_for final : public call {
 public:
  using call::call;

  static detail::call_root run(task<T> work, std::shared_ptr<call_for> self,
                               std::shared_ptr<event_executor> on) {
    static_cast<void>(on);  // kept for as long as items of `work` may be posted to it
    try {
      if constexpr (std::is_void_v<T>) {
        co_await std::move(work);
        self->value_.emplace();
      } else {
        T given = co_await std::move(work);
        self->value_.emplace(std::move(given));
      }
    } catch (...) {
      self->failure_ = std::current_exception();
    }
    self->finish();
  }

 private:
  [[nodiscard]] nb::object value() override {
    if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
    if (!value_) throw error(errc::invalid_request, "the outcome of a call can be taken only once");
    if constexpr (std::is_void_v<T>) {
      value_.reset();
      return nb::none();
    } else {
      T given = std::move(*value_);
      value_.reset();
      return to_python(std::move(given));
    }
  }

  std::optional<std::conditional_t<std::is_void_v<T>, std::monostate, T>> value_;
  std::exception_ptr failure_;
};

/// Starts `work` on the calling thread. Its completions run on `on`, and it stops with `stop`.
template <class T>
[[nodiscard]] std::shared_ptr<call> start(std::shared_ptr<event_executor> on, task<T> work,
                                          std::stop_source stop = {}) {
  auto made = std::make_shared<call_for<T>>(std::move(stop));
  environment given{.executor = on.get(), .stop = made->stop_token()};
  const auto root = call_for<T>::run(std::move(work), made, std::move(on));
  root.coroutine.promise().set_environment(std::move(given));
  root.coroutine.resume();
  return made;
}

/// Blocks the caller, without the GIL, until `running` has finished. On the main thread signals are
/// handled meanwhile; where a handler raises, the call is stopped, its end awaited, and the
/// exception thrown. Needs the GIL.
void wait_for(call& running, event_executor& here);

/// Starts `work` and gives its value: blocks where `on` is null, else gives Python a handle of the
/// call, which may have finished by then. Needs the GIL.
template <class T>
[[nodiscard]] nb::object begin(std::shared_ptr<event_executor> on, task<T> work,
                               std::stop_source stop = {});

/// Python's handle.
class pending {
 public:
  explicit pending(std::shared_ptr<call> running) noexcept : running_(std::move(running)) {}
  pending(pending&&) noexcept = default;
  pending& operator=(pending&&) = delete;
  ~pending();

  [[nodiscard]] call& operator*() const noexcept { return *running_; }

 private:
  std::shared_ptr<call> running_;
};

template <class T>
nb::object begin(std::shared_ptr<event_executor> on, task<T> work, std::stop_source stop) {
  if (on) return nb::cast(pending(start(std::move(on), std::move(work), std::move(stop))));
  auto here = std::make_shared<event_executor>();
  const auto running = start(here, std::move(work), std::move(stop));
  wait_for(*running, *here);
  return running->take();
}

/// `Executor` and `Pending`.
void bind_calls(nb::module_& module);

}  // namespace headrace::python
