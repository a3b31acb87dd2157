#include <headrace/coro/async_scope.hpp>

#include <headrace/coro/with.hpp>

namespace headrace {

struct async_scope::root {
  struct promise_type final : detail::promise_environment {
    [[nodiscard]] root get_return_object() noexcept {
      return {std::coroutine_handle<promise_type>::from_promise(*this)};
    }
    [[nodiscard]] std::suspend_always initial_suspend() const noexcept { return {}; }
    [[nodiscard]] std::suspend_never final_suspend() const noexcept { return {}; }
    void return_void() const noexcept {}
    void unhandled_exception() const noexcept { std::terminate(); }  // the body catches everything
  };

  std::coroutine_handle<promise_type> coroutine;
};

async_scope::root async_scope::run(async_scope& scope, task<void> work, environment given) {
  co_await detail::move_to_executor{given.executor};
  std::exception_ptr failed;
  {
    // Destroyed before the scope hears of the end: what the task holds is gone when join() returns.
    task<void> running = std::move(work);
    try {
      co_await std::move(running);
    } catch (...) {
      failed = std::current_exception();
    }
  }
  scope.finished(std::move(failed));
}

async_scope::async_scope(std::stop_token parent)
    : parent_(std::move(parent), forward_stop{&stop_}) {}

async_scope::~async_scope() { HEADRACE_ASSERT(running() == 0); }

void async_scope::spawn(executor& target, task<void> work) {
  environment given{.executor = &target, .stop = stop_.get_token()};
  root started = run(*this, std::move(work), given);
  started.coroutine.promise().set_environment(std::move(given));
  {
    // Only now: an allocation that failed above must not be awaited.
    const std::lock_guard lock(mutex_);
    ++running_;
  }
  started.coroutine.resume();
}

void async_scope::finished(std::exception_ptr failed) noexcept {
  if (failed) {
    bool first = false;
    {
      const std::lock_guard lock(mutex_);
      if (!first_failure_) {
        first_failure_ = std::move(failed);
        first = true;
      }
    }
    if (first) stop_.request_stop();
  }
  async_condition::wake_list woken;
  const std::lock_guard lock(mutex_);
  if (--running_ == 0) idle_.notify_all(woken);
}

task<void> async_scope::join() {
  // A join is never cut short: what runs in the scope refers to what its owner holds.
  std::unique_lock lock(mutex_);
  while (running_ > 0) co_await idle_.wait_unstoppable(lock);
  std::exception_ptr failed = std::exchange(first_failure_, {});
  lock.unlock();
  if (failed) std::rethrow_exception(failed);
}

std::size_t async_scope::running() const {
  const std::lock_guard lock(mutex_);
  return running_;
}

}  // namespace headrace
