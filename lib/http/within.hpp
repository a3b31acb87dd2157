#pragma once

#include <headrace/base/result.hpp>
#include <headrace/coro/task.hpp>
#include <headrace/coro/with.hpp>
#include <headrace/io/io_context.hpp>

#include <chrono>
#include <stop_token>
#include <string>
#include <utility>

namespace headrace::detail {

/// Like `with_timeout`, for results: what the limit has stopped is `errc::timeout`, "`what` within
/// 5000 ms". Threads: the loop's own.
template <class T>
[[nodiscard]] task<result<T>> within(io_context& context, std::chrono::nanoseconds limit,
                                     std::string what, task<result<T>> work) {
  environment given = co_await current_environment();
  const std::stop_token outer = given.stop;
  std::stop_source either;
  const std::stop_callback inherited(outer, request_stop{&either});
  deadline_timer timer(context, either);
  context.start_timer(timer, deadline_after(context.now(), limit));
  given.stop = either.get_token();
  auto running = std::move(work).under(std::move(given));
  auto done = co_await running;
  if (!done && done.error().kind() == errc::cancelled && timer.fired() && !outer.stop_requested()) {
    const auto milliseconds = std::chrono::duration_cast<std::chrono::milliseconds>(limit).count();
    co_return failure{error(errc::timeout, what + " within " + std::to_string(milliseconds) + " ms",
                            done.error().context())};
  }
  co_return std::move(done);
}

}  // namespace headrace::detail
