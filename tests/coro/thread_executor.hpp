#pragma once

#include <headrace/coro/sync_wait.hpp>

#include <atomic>
#include <chrono>
#include <thread>

namespace headrace::test {

/// A real executor on a thread of its own, with timers. Runs what was posted before it ends.
class thread_executor {
 public:
  thread_executor() : thread_([this] { serve(); }) {
    while (running_.load(std::memory_order_acquire) == nullptr) std::this_thread::yield();
  }
  thread_executor(const thread_executor&) = delete;
  thread_executor& operator=(const thread_executor&) = delete;
  ~thread_executor() {
    get().post(stop_);
    thread_.join();
  }

  [[nodiscard]] executor& get() const noexcept { return *running_.load(std::memory_order_acquire); }
  [[nodiscard]] std::thread::id id() const noexcept { return thread_.get_id(); }

 private:
  struct stop_item final : work_item {
    stop_item() noexcept : work_item(&run_stop) {}
    static void run_stop(work_item& item) noexcept { static_cast<stop_item&>(item).stopped = true; }
    bool stopped = false;
  };

  void serve() {
    detail::blocking_executor here;
    running_.store(&here, std::memory_order_release);
    here.run_until(stop_.stopped);
  }

  stop_item stop_;
  std::atomic<executor*> running_{nullptr};
  std::thread thread_;
};

/// Polls `holds` until it is true or a limit that only a broken program reaches.
template <class Condition>
[[nodiscard]] bool eventually(Condition holds) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!holds()) {
    if (std::chrono::steady_clock::now() > limit) return false;
    std::this_thread::yield();
  }
  return true;
}

/// Suspends until somebody resumes it by hand, whatever the stop token says.
class gate {
 public:
  struct awaiter {
    gate& owner;
    detail::resume_item item{};
    executor* target = nullptr;

    [[nodiscard]] bool await_ready() const noexcept { return false; }
    template <class Promise>
    void await_suspend(std::coroutine_handle<Promise> handle) {
      target = detail::environment_of(handle).executor;
      item.coroutine = handle;
      owner.waiting_.store(this, std::memory_order_release);
    }
    void await_resume() const noexcept {}
  };

  [[nodiscard]] awaiter operator co_await() noexcept { return awaiter{*this}; }
  [[nodiscard]] bool occupied() const noexcept {
    return waiting_.load(std::memory_order_acquire) != nullptr;
  }

  /// Lets the waiting coroutine go on, on its executor.
  void open() {
    awaiter* const waiter = waiting_.exchange(nullptr, std::memory_order_acq_rel);
    const auto handle = waiter->item.coroutine;
    waiter->item.resume_on(waiter->target, handle);
  }

 private:
  std::atomic<awaiter*> waiting_{nullptr};
};

}  // namespace headrace::test
