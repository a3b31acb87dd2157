#pragma once

#include <headrace/base/export.hpp>
#include <headrace/coro/task.hpp>

#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <type_traits>
#include <vector>

namespace headrace {

/// A few helper threads for what can only block: opening files, reading them under epoll, driver
/// initialisation.
///
/// Threads start at the first use, block all signals, and end with the pool, which first runs what
/// was submitted.
class HEADRACE_API blocking_pool {
 public:
  explicit blocking_pool(unsigned threads);
  ~blocking_pool();
  blocking_pool(const blocking_pool&) = delete;
  blocking_pool& operator=(const blocking_pool&) = delete;

  /// Runs `item` on a helper thread. Threads: any.
  void submit(work_item& item);

  /// Calls `function` on a helper thread and resumes on the awaiter's executor with what it gives
  /// or throws. Cannot be cut short by a stop.
  ///
  ///     int opened = co_await helpers.run([path] { return ::open(path.c_str(), O_RDONLY); });
  template <class Function>
  [[nodiscard]] auto run(Function function);

 private:
  void work();

  const unsigned limit_;
  std::mutex mutex_;
  std::condition_variable ready_;
  work_queue items_;
  std::size_t waiting_ = 0;  ///< idle threads
  std::size_t queued_ = 0;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

namespace detail {

template <class Function>
class [[nodiscard]] blocking_call final : work_item {
  using value_type = std::invoke_result_t<Function&>;

 public:
  blocking_call(blocking_pool& pool, Function called)
      : work_item(&call), pool_(pool), function_(std::move(called)) {}

  [[nodiscard]] bool await_ready() const noexcept { return false; }
  template <class Promise>
  void await_suspend(std::coroutine_handle<Promise> handle) {
    executor_ = environment_of(handle).executor;
    coroutine_ = handle;
    pool_.submit(*this);
  }
  value_type await_resume() {
    if (failure_) std::rethrow_exception(failure_);
    return std::move(*value_);
  }

 private:
  static void call(work_item& item) noexcept {
    auto& self = static_cast<blocking_call&>(item);
    try {
      self.value_.emplace(self.function_());
    } catch (...) {
      self.failure_ = std::current_exception();
    }
    self.resume_.resume_on(self.executor_, self.coroutine_);
  }

  blocking_pool& pool_;
  Function function_;
  executor* executor_ = nullptr;
  std::coroutine_handle<> coroutine_;
  resume_item resume_;
  std::optional<value_type> value_;
  std::exception_ptr failure_;
};

}  // namespace detail

template <class Function>
auto blocking_pool::run(Function function) {
  return detail::blocking_call<Function>(*this, std::move(function));
}

}  // namespace headrace
