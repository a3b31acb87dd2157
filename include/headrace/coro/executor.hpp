#pragma once

#include <headrace/base/export.hpp>
#include <headrace/coro/timer_service.hpp>
#include <headrace/coro/work_item.hpp>

namespace headrace {

/// Where coroutines run: one function that queues an intrusive item.
///
/// Our loop, a blocked caller, an Asio executor, an asyncio loop are executors. An executor
/// outlives what is posted to it.
class HEADRACE_API executor {
 public:
  /// Runs `item` later, on the executor's thread. Threads: any. Never fails and never runs the item
  /// before it returns, `inline_executor` excepted.
  virtual void post(work_item& item) noexcept = 0;

  /// Timers on this executor, null where it has none; then `with_timeout` and `sleep_for` are
  /// `unsupported` on it.
  [[nodiscard]] virtual timer_service* timers() noexcept { return nullptr; }

 protected:
  ~executor() = default;
};

/// Runs items at once, on the thread that posts.
class HEADRACE_API inline_executor final : public executor {
 public:
  void post(work_item& item) noexcept override { item.run(item); }
};

}  // namespace headrace
