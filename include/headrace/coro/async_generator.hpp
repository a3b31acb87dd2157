#pragma once

#include <headrace/coro/task.hpp>

#include <cstddef>
#include <iterator>

namespace headrace {

/// Values that arrive one by one.
///
///     while (auto* value = co_await values.next()) use(*value);
///     co_await values.close();
///
/// `next()` gives a pointer to the next value, null at the end; it stays valid until the following
/// `next()`, `close()` or destruction, and what it points to may be moved out. An error is thrown
/// once; after that, and after a stop, `next()` gives null. The body runs in the environment of the
/// `next()` that resumes it. One `next()` at a time.
///
/// Destroying a generator between two `next()` is always legal and does not wait. `close()` does
/// the same and waits for what the body left running. clang also compiles `for co_await (auto&
/// value : values)`.
template <class T>
class [[nodiscard]] async_generator {
 public:
  class promise_type;
  using value_type = T;

  async_generator() noexcept = default;
  async_generator(async_generator&& other) noexcept
      : body_(std::exchange(other.body_, {})), cleanup_(std::move(other.cleanup_)) {}
  async_generator& operator=(async_generator&& other) noexcept {
    if (this != &other) {
      destroy();
      body_ = std::exchange(other.body_, {});
      cleanup_ = std::move(other.cleanup_);
    }
    return *this;
  }
  ~async_generator() { destroy(); }

  /// The next value, null at the end. The generator must outlive the task.
  [[nodiscard]] task<T*> next() {
    if (!body_ || body_.done()) co_return nullptr;
    co_await resume_body{body_};
    co_return body_.promise().take_yielded();
  }

  /// Ends the generator and waits for what it left running. `next()` gives null afterwards.
  [[nodiscard]] task<void> close() {
    destroy();
    auto cleanup = std::exchange(cleanup_, {});
    if (cleanup) co_await std::move(cleanup);
  }

  /// What `close()` awaits after the body is gone. Dropped unstarted where the generator is
  /// destroyed without `close()`.
  void at_close(task<void> cleanup) noexcept { cleanup_ = std::move(cleanup); }

  class iterator {
   public:
    explicit iterator(async_generator* owner = nullptr, T* current = nullptr) noexcept
        : owner_(owner), current_(current) {}

    [[nodiscard]] T& operator*() const noexcept { return *current_; }
    [[nodiscard]] T* operator->() const noexcept { return current_; }

    /// `co_await ++it` moves on to the next value.
    [[nodiscard]] task<iterator*> operator++() {
      current_ = co_await owner_->next();
      co_return this;
    }

    friend bool operator==(const iterator& it, std::default_sentinel_t) noexcept {
      return it.current_ == nullptr;
    }

   private:
    async_generator* owner_;
    T* current_;
  };

  /// `co_await values.begin()` starts the generator and gives an iterator to the first value.
  [[nodiscard]] task<iterator> begin() {
    T* first = co_await next();
    co_return iterator(this, first);
  }
  [[nodiscard]] std::default_sentinel_t end() const noexcept { return {}; }

 private:
  struct resume_body {
    std::coroutine_handle<promise_type> body;

    [[nodiscard]] bool await_ready() const noexcept { return false; }
    template <class Promise>
    std::coroutine_handle<> await_suspend(std::coroutine_handle<Promise> consumer) noexcept {
      body.promise().set_environment(detail::environment_of(consumer));
      body.promise().set_consumer(consumer);
      return body;
    }
    void await_resume() const noexcept {}
  };

  explicit async_generator(std::coroutine_handle<promise_type> body) noexcept : body_(body) {}

  void destroy() noexcept {
    if (body_) std::exchange(body_, {}).destroy();
  }

  std::coroutine_handle<promise_type> body_;
  task<void> cleanup_;
};

template <class T>
class async_generator<T>::promise_type final : public detail::promise_environment {
 public:
  struct hand_over {
    [[nodiscard]] bool await_ready() const noexcept { return false; }
    std::coroutine_handle<> await_suspend(std::coroutine_handle<promise_type> body) noexcept {
      return body.promise().consumer_;
    }
    void await_resume() const noexcept {}
  };

  [[nodiscard]] async_generator get_return_object() noexcept {
    return async_generator(std::coroutine_handle<promise_type>::from_promise(*this));
  }
  [[nodiscard]] std::suspend_always initial_suspend() const noexcept { return {}; }
  [[nodiscard]] hand_over final_suspend() const noexcept { return {}; }

  // The operand of co_yield lives until the body is resumed: the consumer may use it in place.
  [[nodiscard]] hand_over yield_value(T& value) noexcept {
    yielded_ = &value;
    return {};
  }
  [[nodiscard]] hand_over yield_value(T&& value) noexcept {
    yielded_ = &value;
    return {};
  }
  void return_void() noexcept {}
  void unhandled_exception() noexcept { failure_ = std::current_exception(); }

  void set_consumer(std::coroutine_handle<> consumer) noexcept { consumer_ = consumer; }

  [[nodiscard]] T* take_yielded() {
    if (failure_) std::rethrow_exception(std::exchange(failure_, {}));
    return std::exchange(yielded_, nullptr);
  }

 private:
  std::coroutine_handle<> consumer_ = std::noop_coroutine();
  T* yielded_ = nullptr;
  std::exception_ptr failure_;
};

/// Calls `body(value)` for each value, awaits what it gives where that is a task, and closes the
/// generator on every path: the preferred loop. What the body throws is rethrown after closing.
///
///     co_await for_each(model.stream(), [](tensor& t) { std::puts(t.name().data()); });
template <class T, class Body>
task<void> for_each(async_generator<T> values, Body body) {
  std::exception_ptr failed;
  try {
    while (auto* value = co_await values.next()) {
      if constexpr (std::is_void_v<std::invoke_result_t<Body&, T&>>) {
        body(*value);
      } else {
        co_await body(*value);
      }
    }
  } catch (...) {
    failed = std::current_exception();
  }
  try {
    co_await values.close();
  } catch (...) {
    if (!failed) failed = std::current_exception();
  }
  if (failed) std::rethrow_exception(failed);
}

}  // namespace headrace
