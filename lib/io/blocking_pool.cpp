#include <headrace/io/blocking_pool.hpp>

#include <headrace/io/thread.hpp>

#include <system_error>

namespace headrace {

blocking_pool::blocking_pool(unsigned threads) : limit_(threads > 0 ? threads : 1) {
  threads_.reserve(limit_);
}

blocking_pool::~blocking_pool() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    ready_.notify_all();
  }
  for (auto& thread : threads_) thread.join();
}

void blocking_pool::submit(work_item& item) {
  const std::lock_guard lock(mutex_);
  // Before the item is queued: where no thread can be had at all, the caller keeps it.
  if (queued_ + 1 > waiting_ && threads_.size() < limit_ && !stopping_) {
    try {
      threads_.push_back(detail::start_thread("headrace-helper", [this] { work(); }));
    } catch (const std::system_error&) {
      if (threads_.empty()) throw;
    }
  }
  items_.push(item);
  ++queued_;
  ready_.notify_one();
}

void blocking_pool::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    while (items_.empty() && !stopping_) {
      ++waiting_;
      ready_.wait(lock);
      --waiting_;
    }
    work_item* const item = items_.pop();
    if (item == nullptr) return;
    --queued_;
    lock.unlock();
    item->run(*item);
    lock.lock();
  }
}

}  // namespace headrace
