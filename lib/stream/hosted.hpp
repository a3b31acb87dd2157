#pragma once

#include "stream/runtime_state.hpp"

#include <headrace/coro/async_condition.hpp>
#include <headrace/coro/with.hpp>

#include <chrono>
#include <memory>
#include <mutex>
#include <stop_token>

namespace headrace::detail {

template <class T>
struct hosting {
  outcome<T> settled;
  std::stop_source stop;
  std::mutex mutex;
  async_condition over;
  bool finished = false;
};

template <class T>
task<void> host(task<T> work, hosting<T>* guest) {
  environment given = co_await current_environment();
  {
    const std::stop_callback inherited(given.stop, request_stop{&guest->stop});
    given.stop = guest->stop.get_token();
    guest->settled = co_await settle(std::move(work), std::move(given));
  }
  async_condition::wake_list woken;
  const std::lock_guard lock(guest->mutex);
  guest->finished = true;
  guest->over.notify_all(woken);
}

/// Runs what `make(loop)` gives on a loop of the runtime and comes back to the awaiter's executor
/// with its outcome. Unlike `on`, it is something that `runtime_state::stop` knows of: it stops it
/// and waits for it. Throws `cancelled` after `stop`, `invalid_request` where the awaiter blocks
/// the thread that would have to drive the loop.
///
///     auto opened = co_await hosted<model>(runtime, [uri](loop_services& loop) { return
///     open_here(uri, &loop); });
template <class T, class Make>
[[nodiscard]] task<T> hosted(std::shared_ptr<runtime_state> runtime, Make make) {
  const environment given = co_await current_environment();
  runtime->check_waiter(given.executor);
  runtime->start();
  hosting<T> guest;
  const std::stop_callback inherited(given.stop, request_stop{&guest.stop});
  runtime->spawn([&guest, &make](loop_services& loop) { return host<T>(make(loop), &guest); });
  {
    std::unique_lock lock(guest.mutex);
    while (!guest.finished) co_await guest.over.wait_unstoppable(lock);
  }
  co_return guest.settled.take();
}

/// `work` with a limit on its time; 0: none.
template <class T>
[[nodiscard]] task<T> within(std::chrono::milliseconds deadline, task<T> work) {
  return deadline.count() > 0 ? with_timeout(deadline, std::move(work)) : std::move(work);
}

}  // namespace headrace::detail
