#pragma once

#include <headrace/coro/async_scope.hpp>
#include <headrace/coro/with.hpp>
#include <headrace/io/blocking_pool.hpp>
#include <headrace/io/io_context.hpp>

#include <chrono>
#include <exception>
#include <optional>
#include <type_traits>
#include <utility>

namespace headrace::test {

/// A loop on the test's own thread, with the backend that the environment variable HEADRACE_IO
/// names.
///
///     test_loop here;
///     auto head = here.run(exchange(&here.loop, server.origin()));
class test_loop {
 public:
  test_loop() : loop({.backend = io_backend_from_environment().value(), .helpers = &helpers}) {}

  blocking_pool helpers{1};
  io_context loop;

  /// Runs `work` on the loop and gives what it gives or throws. Requests its stop after `limit`: no
  /// test hangs.
  template <class T>
  T run(task<T> work, std::chrono::nanoseconds limit = std::chrono::seconds(30)) {
    outcome<T> settled;
    async_scope scope;
    scope.spawn(loop, finish(with_timeout(limit, std::move(work)), &settled, &loop));
    loop.run();
    if (settled.failed) std::rethrow_exception(settled.failed);
    if constexpr (!std::is_void_v<T>) return std::move(*settled.value);
  }

 private:
  template <class T>
  struct outcome {
    std::optional<std::conditional_t<std::is_void_v<T>, bool, T>> value;
    std::exception_ptr failed;
  };

  template <class T>
  static task<void> finish(task<T> work, outcome<T>* settled, io_context* loop) {
    try {
      if constexpr (std::is_void_v<T>) {
        co_await std::move(work);
      } else {
        T value = co_await std::move(work);
        settled->value.emplace(std::move(value));
      }
    } catch (...) {
      settled->failed = std::current_exception();
    }
    loop->stop();
  }
};

}  // namespace headrace::test
