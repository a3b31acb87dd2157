#pragma once

#include <headrace/coro/executor.hpp>

#include <chrono>
#include <memory>
#include <mutex>

namespace headrace::python {

/// An executor that belongs to whoever watches its descriptor: an asyncio loop, or a blocked
/// caller.
///
/// `post` queues an item and makes the descriptor readable; `run_ready` runs what is queued. Nobody
/// but the owner runs items, until it abandons the executor: then what is posted runs at once, on
/// the thread that posts, so that what is under way can end without it. Held by `shared_ptr`.
class event_executor final : public executor, public std::enable_shared_from_this<event_executor> {
 public:
  event_executor();
  ~event_executor();
  event_executor(const event_executor&) = delete;
  event_executor& operator=(const event_executor&) = delete;

  void post(work_item& item) noexcept override;

  /// Readable while there are items. Valid as long as the executor.
  [[nodiscard]] int descriptor() const noexcept { return descriptor_; }

  /// Runs what has been posted. Threads: the owner's.
  void run_ready() noexcept;

  /// Waits until there are items, a signal arrives or `limit` has passed; negative: no limit. Gives
  /// whether there are items. Threads: the owner's, without the GIL.
  [[nodiscard]] bool wait(std::chrono::milliseconds limit) const noexcept;

  /// Runs what is queued, and from now on items as they are posted. Threads: any.
  void abandon() noexcept;

 private:
  [[nodiscard]] work_item* take() noexcept;

  const int descriptor_;
  std::mutex mutex_;
  work_queue items_;
  bool signalled_ = false;  ///< The descriptor is readable, or about to be read.
  bool abandoned_ = false;
};

}  // namespace headrace::python
