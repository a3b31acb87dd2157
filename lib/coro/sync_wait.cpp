#include <headrace/coro/sync_wait.hpp>

namespace headrace::detail {

void blocking_executor::post(work_item& item) noexcept {
  const std::lock_guard lock(mutex_);
  items_.push(item);
  // Notified under the lock: once the caller has the lock again, nobody is inside the condition
  // variable any more, and the caller may destroy it.
  ready_.notify_one();
}

void blocking_executor::run_until(const bool& finished) {
  while (!finished) {
    work_item* item = nullptr;
    {
      std::unique_lock lock(mutex_);
      while ((item = items_.pop()) == nullptr) {
        const auto due = timers_.next();
        if (!due) {
          ready_.wait(lock);
        } else if (ready_.wait_until(lock, *due) == std::cv_status::timeout) {
          break;
        }
      }
    }
    if (item != nullptr) item->run(*item);
    timers_.run_due(now());
  }
}

}  // namespace headrace::detail
