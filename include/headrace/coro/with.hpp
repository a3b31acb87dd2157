#pragma once

#include <headrace/base/clock.hpp>
#include <headrace/base/error.hpp>
#include <headrace/base/export.hpp>
#include <headrace/coro/task.hpp>

#include <chrono>
#include <optional>
#include <stop_token>

namespace headrace {

namespace detail {

/// Requests a stop by way of a copy: a callback may resume, on this thread, the coroutine that
/// holds `source`, and the state must outlive the call that walks its callbacks.
inline void request_stop_of(const std::stop_source& source) noexcept {
  std::stop_source kept = source;
  kept.request_stop();
}

struct request_stop {
  std::stop_source* source;
  void operator()() const noexcept { request_stop_of(*source); }
};

/// `now + duration` where a duration of "for ever" does not overflow, and a negative one is none.
[[nodiscard]] inline steady_time deadline_after(steady_time now,
                                                std::chrono::nanoseconds duration) noexcept {
  if (duration <= std::chrono::nanoseconds::zero()) return now;
  return duration < steady_time::max() - now ? now + duration : steady_time::max();
}

/// Moves the coroutine that awaits it to `target`; stays where it is when that is null.
struct move_to_executor {
  executor* target;
  resume_item item{};

  [[nodiscard]] bool await_ready() const noexcept { return target == nullptr; }
  void await_suspend(std::coroutine_handle<> handle) noexcept { item.resume_on(target, handle); }
  void await_resume() const noexcept {}
};

/// The outcome of a task, kept while its coroutine moves between executors.
template <class T>
class outcome {
 public:
  void fail(std::exception_ptr failed) noexcept { failure_ = std::move(failed); }
  template <class... Values>
  void succeed(Values&&... values) {
    value_.emplace(std::forward<Values>(values)...);
  }
  [[nodiscard]] bool failed() const noexcept { return failure_ != nullptr; }
  T take() {
    if (failure_) std::rethrow_exception(std::move(failure_));
    if constexpr (!std::is_void_v<T>) return std::move(*value_);
  }

 private:
  std::optional<std::conditional_t<std::is_void_v<T>, std::monostate, T>> value_;
  std::exception_ptr failure_;
};

/// Awaits `work` in `given` and keeps what it gives or throws.
template <class T>
task<outcome<T>> settle(task<T> work, environment given) {
  outcome<T> settled;
  try {
    // Named, as GCC wants what is passed by value inside an awaited expression.
    auto running = std::move(work).under(std::move(given));
    if constexpr (std::is_void_v<T>) {
      co_await running;
      settled.succeed();
    } else {
      T value = co_await running;
      settled.succeed(std::move(value));
    }
  } catch (...) {
    settled.fail(std::current_exception());
  }
  co_return settled;
}

/// A timer that requests a stop.
class deadline_timer final : public timer_item {
 public:
  deadline_timer(timer_service& timers, std::stop_source& source) noexcept
      : timer_item(&fire), timers_(timers), source_(source) {}
  ~deadline_timer() { timers_.cancel_timer(*this); }
  [[nodiscard]] bool fired() const noexcept { return fired_; }

 private:
  static void fire(timer_item& item) noexcept {
    auto& timer = static_cast<deadline_timer&>(item);
    timer.fired_ = true;
    request_stop_of(timer.source_);
  }

  timer_service& timers_;
  std::stop_source& source_;
  bool fired_ = false;
};

/// What `limited` gives: the outcome, and whether the limit has asked for the stop rather than
/// somebody outside.
template <class T>
struct limited_outcome {
  T done;
  bool late = false;
};

/// `with_timeout` for work that gives a result instead of throwing: requests its stop after
/// `limit`, and leaves it to the caller what that means. Threads: that of `timers`, which outlives
/// it.
template <class T>
[[nodiscard]] task<limited_outcome<T>> limited(timer_service& timers,
                                               std::chrono::nanoseconds limit, task<T> work) {
  environment given = co_await current_environment();
  const std::stop_token outer = given.stop;
  std::stop_source either;
  const std::stop_callback inherited(outer, request_stop{&either});
  deadline_timer timer(timers, either);
  timers.start_timer(timer, deadline_after(timers.now(), limit));
  given.stop = either.get_token();
  auto running = std::move(work).under(std::move(given));
  T done = co_await running;
  const bool late = timer.fired() && !outer.stop_requested();
  co_return limited_outcome<T>{std::move(done), late};
}

/// Resumes a coroutine at a time, or at a stop.
class HEADRACE_API sleep_operation final : timer_item {
 public:
  explicit sleep_operation(std::chrono::nanoseconds duration) noexcept
      : timer_item(&fire), duration_(duration) {}

  [[nodiscard]] bool await_ready() const noexcept { return false; }
  template <class Promise>
  bool await_suspend(std::coroutine_handle<Promise> handle) {
    environment_ = environment_of(handle);
    coroutine_ = handle;
    return start();
  }
  void await_resume() const;

 private:
  // The stop may come from any thread; timers are the executor's own. So the stop posts.
  struct on_stop {
    sleep_operation* sleep;
    void operator()() const noexcept;
  };
  struct stop_item final : work_item {
    explicit stop_item(sleep_operation& owner) noexcept : work_item(&run_stop), sleep(owner) {}
    static void run_stop(work_item& item) noexcept;
    sleep_operation& sleep;
  };

  bool start();
  static void fire(timer_item& item) noexcept;
  void finish() noexcept;

  std::chrono::nanoseconds duration_;
  environment environment_;
  std::coroutine_handle<> coroutine_;
  timer_service* timers_ = nullptr;
  stop_item stop_item_{*this};
  std::optional<std::stop_callback<on_stop>> stop_callback_;
  bool stop_posted_ = false;  ///< Written by the stop callback, read after the callback is gone.
  bool stop_ran_ = false;
  bool fired_ = false;
  bool cancelled_ = false;
};

}  // namespace detail

/// Runs `work` so that it also stops when `token` does.
template <class T>
[[nodiscard]] task<T> with_stop(std::stop_token token, task<T> work) {
  environment given = co_await current_environment();
  std::stop_source either;
  const std::stop_callback inherited(given.stop, detail::request_stop{&either});
  const std::stop_callback added(std::move(token), detail::request_stop{&either});
  given.stop = either.get_token();
  auto running = std::move(work).under(std::move(given));
  co_return co_await running;
}

/// Runs `work`, requests its stop after `duration` and throws `errc::timeout` where that ended it.
///
/// Waits for `work` to finish in any case: nothing is left running. Demands an executor with timers
/// (a loop, `sync_wait`).
template <class T>
[[nodiscard]] task<T> with_timeout(std::chrono::nanoseconds duration, task<T> work) {
  environment given = co_await current_environment();
  timer_service* const timers = given.executor != nullptr ? given.executor->timers() : nullptr;
  if (timers == nullptr)
    throw error(errc::unsupported, "with_timeout needs an executor with timers");
  const std::stop_token outer = given.stop;
  std::stop_source either;
  const std::stop_callback inherited(outer, detail::request_stop{&either});
  detail::deadline_timer timer(*timers, either);
  timers->start_timer(timer, detail::deadline_after(timers->now(), duration));
  given.stop = either.get_token();
  detail::outcome<T> settled = co_await detail::settle(std::move(work), std::move(given));
  if (settled.failed() && timer.fired() && !outer.stop_requested()) {
    bool cancelled = false;
    try {
      static_cast<void>(settled.take());
    } catch (const error& failed) {
      if (failed.kind() != errc::cancelled) throw;
      cancelled = true;
    }
    HEADRACE_ASSERT(cancelled);
    throw error(errc::timeout,
                "not finished within " +
                    std::to_string(
                        std::chrono::duration_cast<std::chrono::milliseconds>(duration).count()) +
                    " ms");
  }
  co_return settled.take();
}

/// Runs `work` on `target` and comes back to the awaiter's executor with its outcome.
///
///     model opened = co_await on(runtime.loop(), open_here(uri));
template <class T>
[[nodiscard]] task<T> on(executor& target, task<T> work) {
  environment given = co_await current_environment();
  executor* const home = given.executor;
  given.executor = &target;
  co_await detail::move_to_executor{&target};
  detail::outcome<T> settled = co_await detail::settle(std::move(work), std::move(given));
  co_await detail::move_to_executor{home};
  co_return settled.take();
}

/// Runs `work` where it would run and resumes its awaiter by way of `target`: for coroutines of
/// other libraries, which have no environment and would be resumed on the loop.
template <class T>
[[nodiscard]] task<T> via(executor& target, task<T> work) {
  environment given = co_await current_environment();
  detail::outcome<T> settled = co_await detail::settle(std::move(work), std::move(given));
  co_await detail::move_to_executor{&target};
  co_return settled.take();
}

/// Pauses. Throws `errc::cancelled` when the environment's stop token is triggered first. Demands
/// an executor with timers.
[[nodiscard]] inline detail::sleep_operation sleep_for(std::chrono::nanoseconds duration) noexcept {
  return detail::sleep_operation(duration);
}

}  // namespace headrace
