#pragma once

#include <headrace/coro/async_condition.hpp>
#include <headrace/coro/task.hpp>

#include <cstddef>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>

namespace headrace {

/// A bounded queue between coroutines, on any threads: many senders, many receivers.
///
/// `send` waits while the queue is full, `receive` while it is empty. After `close` nothing can be
/// sent, and `receive` gives what is left, then nothing. A stop of the environment ends a wait.
/// Coroutines that wait must be gone before the channel is destroyed.
///
///     const bool sent = co_await channel.send(std::move(value));    // false: closed, or stopped
///     std::optional<T> value = co_await channel.receive();          // empty: closed and drained,
///     or stopped
template <class T>
class channel {
 public:
  /// `capacity` values may wait; at least 1.
  explicit channel(std::size_t capacity) noexcept : capacity_(capacity) {
    HEADRACE_ASSERT(capacity > 0);
  }
  channel(const channel&) = delete;
  channel& operator=(const channel&) = delete;

  [[nodiscard]] task<bool> send(T value) {
    std::unique_lock lock(mutex_);
    while (!closed_ && values_.size() >= capacity_) {
      const bool notified = co_await writable_.wait(lock);
      if (!notified) co_return false;
    }
    if (closed_) co_return false;
    async_condition::wake_list woken;
    values_.push_back(std::move(value));
    readable_.notify_one(woken);
    lock.unlock();
    co_return true;
  }

  /// Sends without waiting: false where the channel is full or closed, and then `value` is
  /// untouched. Threads: any.
  [[nodiscard]] bool try_send(T& value) {
    async_condition::wake_list woken;
    const std::lock_guard lock(mutex_);
    if (closed_ || values_.size() >= capacity_) return false;
    values_.push_back(std::move(value));
    readable_.notify_one(woken);
    return true;
  }

  [[nodiscard]] task<std::optional<T>> receive() {
    std::unique_lock lock(mutex_);
    while (values_.empty() && !closed_) {
      const bool notified = co_await readable_.wait(lock);
      if (!notified) co_return std::nullopt;
    }
    if (values_.empty()) co_return std::nullopt;
    async_condition::wake_list woken;
    std::optional<T> value(std::move(values_.front()));
    values_.pop_front();
    writable_.notify_one(woken);
    lock.unlock();
    co_return value;
  }

  /// Receives without waiting: empty where there is nothing. Threads: any.
  [[nodiscard]] std::optional<T> try_receive() {
    async_condition::wake_list woken;
    const std::lock_guard lock(mutex_);
    if (values_.empty()) return std::nullopt;
    std::optional<T> value(std::move(values_.front()));
    values_.pop_front();
    writable_.notify_one(woken);
    return value;
  }

  /// Threads: any. May be called more than once.
  void close() noexcept {
    async_condition::wake_list woken;
    const std::lock_guard lock(mutex_);
    closed_ = true;
    readable_.notify_all(woken);
    writable_.notify_all(woken);
  }

 private:
  std::mutex mutex_;
  const std::size_t capacity_;
  std::deque<T> values_;
  async_condition readable_;
  async_condition writable_;
  bool closed_ = false;
};

}  // namespace headrace
