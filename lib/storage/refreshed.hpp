#pragma once

#include <headrace/base/clock.hpp>
#include <headrace/base/log.hpp>
#include <headrace/base/result.hpp>
#include <headrace/coro/async_condition.hpp>
#include <headrace/coro/task.hpp>
#include <headrace/storage/transfer.hpp>

#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

namespace headrace {

/// A value that may run out: temporary keys, a token.
template <class T>
struct expiring {
  T value;
  std::optional<system_time> expires;  ///< Nothing: it lasts.
};

/// Where such a value comes from: an environment, a file, a metadata server. Threads: any; one
/// `fetch` at a time.
template <class T>
class expiring_source {
 public:
  virtual ~expiring_source() = default;
  [[nodiscard]] virtual task<result<expiring<T>>> fetch(storage_loop& loop) = 0;
};

/// Keeps a value fresh: fetched at the first use, once for all who wait, on whichever loop came
/// first; again five minutes before it runs out, or when a store has refused it.
///
///     auto keys = co_await credentials.get(loop);
///
/// A refresh that fails while the value still holds is logged, and tried again a minute later. A
/// value that is fetched serves for a minute also where it seems to have run out: the clock may be
/// wrong, and the store will say. A stop ends the fetch of whoever began it; one of those who wait
/// takes over.
///
/// Threads: any. No `get` may be under way when it is destroyed. What a fetch throws reaches
/// whoever began it; those who wait try for themselves.
template <class T>
class refreshed {
 public:
  static constexpr std::chrono::minutes margin{5};
  static constexpr std::chrono::minutes patience{1};

  /// `time` outlives it.
  explicit refreshed(std::shared_ptr<expiring_source<T>> source, const clock& time = real_clock())
      : source_(std::move(source)), time_(time) {}

  [[nodiscard]] task<result<T>> get(storage_loop& loop) {
    std::unique_lock lock(mutex_);
    for (;;) {
      if (usable()) co_return held_->value;
      if (!fetching_) break;
      const std::uint64_t seen = round_;
      const bool notified = co_await ended_.wait(lock);
      if (!notified)
        co_return failure{error(errc::cancelled, "stopped while waiting for credentials")};
      // Those who waited share what they waited for, an error included; a stop was not theirs.
      if (round_ != seen && failed_ && !usable()) co_return failure{*failed_};
    }
    fetching_ = true;
    lock.unlock();
    result<expiring<T>> fetched = failure{error(errc::cancelled, "stopped")};
    std::exception_ptr thrown;
    try {
      fetched = co_await source_->fetch(loop);
    } catch (...) {
      thrown = std::current_exception();
    }
    async_condition::wake_list woken;
    lock.lock();
    auto outcome = take(std::move(fetched));
    fetching_ = false;
    ++round_;
    ended_.notify_all(woken);
    lock.unlock();
    if (thrown) std::rethrow_exception(thrown);
    co_return outcome;
  }

  /// A store has refused `used`: the next `get` fetches another, if nobody has done so since.
  void refuse(const T& used) {
    const std::lock_guard lock(mutex_);
    if (held_ && held_->value == used) held_.reset();
  }

 private:
  [[nodiscard]] bool holds() const {
    return held_ && (!held_->expires || time_.wall() < *held_->expires);
  }
  [[nodiscard]] bool lately(const std::optional<steady_time>& when) const {
    return when && time_.now() < *when + patience;
  }
  [[nodiscard]] bool usable() const {
    if (!held_) return false;
    if (lately(fetched_)) return true;
    return holds() &&
           (lately(refused_) || !held_->expires || time_.wall() < *held_->expires - margin);
  }

  result<T> take(result<expiring<T>> fetched) {
    failed_.reset();
    if (fetched) {
      fetched_ = time_.now();
      held_ = std::move(*fetched);
      return held_->value;
    }
    // A stop says nothing about the source: whoever comes next asks it.
    if (fetched.error().kind() == errc::cancelled) return failure{fetched.error()};
    refused_ = time_.now();
    failed_ = fetched.error();
    if (!holds()) return failure{*failed_};
    log(log_level::warning,
        "credentials are about to run out and could not be refreshed: " + failed_->message());
    return held_->value;
  }

  const std::shared_ptr<expiring_source<T>> source_;
  const clock& time_;
  std::mutex mutex_;
  async_condition ended_;
  bool fetching_ = false;
  std::uint64_t round_ = 0;  ///< Fetches that have ended.
  std::optional<expiring<T>> held_;
  std::optional<error> failed_;         ///< Of the last fetch; a stop is none.
  std::optional<steady_time> fetched_;  ///< When a fetch last succeeded, and failed.
  std::optional<steady_time> refused_;
};

}  // namespace headrace
