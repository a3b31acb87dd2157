#pragma once

#include <headrace/base/result.hpp>
#include <headrace/coro/task.hpp>
#include <headrace/coro/with.hpp>
#include <headrace/io/io_context.hpp>

#include <chrono>
#include <string>
#include <utility>

namespace headrace::detail {

/// Like `with_timeout`, for results: what the limit has stopped is `errc::timeout`, "`what` within
/// 5000 ms". Threads: the loop's own.
template <class T>
[[nodiscard]] task<result<T>> within(io_context& context, std::chrono::nanoseconds limit,
                                     std::string what, task<result<T>> work) {
  auto running = limited(context, limit, std::move(work));
  auto outcome = co_await std::move(running);
  result<T>& done = outcome.done;
  if (!done && done.error().kind() == errc::cancelled && outcome.late) {
    const auto milliseconds = std::chrono::duration_cast<std::chrono::milliseconds>(limit).count();
    co_return failure{error(errc::timeout, what + " within " + std::to_string(milliseconds) + " ms",
                            done.error().context())};
  }
  co_return std::move(done);
}

}  // namespace headrace::detail
