#include <headrace/device/staging_pool.hpp>

#include "device/pinned_memory.hpp"
#include "device/staging_pages.hpp"

#include <headrace/base/assert.hpp>
#include <headrace/base/log.hpp>
#include <headrace/coro/async_condition.hpp>
#include <headrace/io/blocking_pool.hpp>

#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

namespace headrace {
namespace detail {
namespace {

/// Somebody who waits for a slot; lives in the waiting coroutine.
struct slot_waiter {
  async_condition ready;
  std::byte* given = nullptr;
  std::optional<error> failed;
};

std::string locked_memory_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) != 0) return "unknown";
  return limit.rlim_cur == RLIM_INFINITY ? "unlimited" : format_size(limit.rlim_cur);
}

}  // namespace

/// The pool behind its handle: slots on loan keep it.
class staging_state : public std::enable_shared_from_this<staging_state> {
 public:
  staging_state(staging_options options, std::shared_ptr<cuda_device> target,
                blocking_pool& helpers)
      : options_(options), target_(std::move(target)), helpers_(helpers), possible_(options.slots) {
    HEADRACE_ASSERT(options.slots > 0 && options.slot_size > 0 && options.slot_size % 4096 == 0);
    spare_.reserve(options.slots);
  }
  staging_state(const staging_state&) = delete;
  staging_state& operator=(const staging_state&) = delete;

  [[nodiscard]] const staging_options& options() const noexcept { return options_; }

  [[nodiscard]] std::size_t pinned() const noexcept {
    const std::lock_guard lock(mutex_);
    return made_ * options_.slot_size;
  }

  [[nodiscard]] task<result<staging_slot>> acquire();
  void give_back(std::byte* data) noexcept;
  void close() noexcept;

 private:
  [[nodiscard]] result<std::byte*> map() const;
  void unmap(std::byte* data) const noexcept;
  [[nodiscard]] error with_advice(const error& failed) const;
  [[nodiscard]] staging_slot lend(std::byte* data) { return {shared_from_this(), data}; }
  [[nodiscard]] staging_slot take_spare() {
    std::byte* const data = spare_.back();
    spare_.pop_back();
    return lend(data);
  }

  const staging_options options_;
  const std::shared_ptr<cuda_device> target_;  ///< Null: nothing is pinned.
  blocking_pool& helpers_;

  mutable std::mutex mutex_;
  std::vector<std::byte*> spare_;     ///< What was given back last is at the end.
  std::deque<slot_waiter*> waiters_;  ///< The longest waiting one first.
  unsigned made_ = 0;                 ///< Slots that there are.
  unsigned making_ = 0;               ///< Slots that helpers are pinning.
  unsigned possible_;                 ///< How many there can be, as far as is known.
  bool closed_ = false;
};

task<result<staging_slot>> staging_state::acquire() {
  async_condition::wake_list woken;
  std::unique_lock lock(mutex_);
  HEADRACE_ASSERT(!closed_);
  if (!spare_.empty()) co_return take_spare();

  slot_waiter self;
  if (made_ + making_ < possible_) {
    ++making_;
    lock.unlock();
    std::optional<result<std::byte*>> mapped;
    try {
      auto mapping = helpers_.run([this] { return map(); });
      auto got = co_await mapping;
      mapped.emplace(std::move(got));
    } catch (const std::system_error& no_thread) {
      mapped.emplace(failure{system_failure(no_thread.code(), "cannot start a helper thread")});
    }
    lock.lock();
    --making_;
    if (*mapped) {
      ++made_;
      co_return lend(**mapped);
    }
    error failed = mapped->error();
    const bool full = failed.kind() == errc::out_of_memory;
    const unsigned rest = made_ + making_;
    if (rest == 0) {
      // Nothing will ever be given back to those who wait. The next one to ask tries again.
      possible_ = options_.slots;
      if (full) failed = with_advice(failed);
      for (slot_waiter* const waiter : waiters_) {
        waiter->failed = failed;
        waiter->ready.notify_one(woken);
      }
      waiters_.clear();
    }
    if (rest == 0 || !full) co_return failure{failed};
    possible_ = rest;
    if (!spare_.empty()) co_return take_spare();  // one that came back meanwhile
    waiters_.push_front(&self);
    lock.unlock();
    log(log_level::warning, "staging memory: " + std::to_string(rest) + " slots instead of " +
                                std::to_string(options_.slots) + ": " + failed.message());
    lock.lock();
  } else {
    waiters_.push_back(&self);
  }

  while (self.given == nullptr && !self.failed) {
    const bool notified = co_await self.ready.wait(lock);
    if (!notified && self.given == nullptr && !self.failed) {
      waiters_.erase(std::find(waiters_.begin(), waiters_.end(), &self));
      co_return failure{error(errc::cancelled, "stopped while waiting for staging memory")};
    }
  }
  if (self.failed) co_return failure{*self.failed};
  co_return lend(self.given);
}

void staging_state::give_back(std::byte* data) noexcept {
  async_condition::wake_list woken;
  {
    const std::lock_guard lock(mutex_);
    if (!closed_) {
      if (waiters_.empty()) {
        spare_.push_back(data);
      } else {
        slot_waiter& next = *waiters_.front();
        waiters_.pop_front();
        next.given = data;
        next.ready.notify_one(woken);
      }
      return;
    }
    --made_;
  }
  unmap(data);
}

void staging_state::close() noexcept {
  std::vector<std::byte*> dropped;
  {
    const std::lock_guard lock(mutex_);
    HEADRACE_ASSERT(waiters_.empty() && making_ == 0);
    closed_ = true;
    dropped.swap(spare_);
    made_ -= static_cast<unsigned>(dropped.size());
  }
  for (std::byte* const data : dropped) unmap(data);
}

result<std::byte*> staging_state::map() const {
  std::byte* const data = map_pages(options_.slot_size, target_ == nullptr);
  if (data == nullptr) {
    return failure{
        error(errc::out_of_memory, "cannot map memory: " + std::generic_category().message(errno))};
  }
  if (target_ != nullptr) {
    auto pinned = pin(*target_, {data, options_.slot_size});
    if (!pinned) {
      unmap_pages(data, options_.slot_size);
      return failure{pinned.error()};
    }
  }
  return data;
}

void staging_state::unmap(std::byte* data) const noexcept {
  if (target_ != nullptr) {
    if (left_behind_by_fork(*target_)) return;
    unpin(*target_, data);
  }
  unmap_pages(data, options_.slot_size);
}

error staging_state::with_advice(const error& failed) const {
  return error(errc::out_of_memory,
               failed.reason() + ". Not one staging slot of " + format_size(options_.slot_size) +
                   " could be had: lower --staging-slot-size (and --staging-slots, which is " +
                   std::to_string(options_.slots) +
                   "), or free memory of the host; the limit on locked memory (ulimit -l) is " +
                   locked_memory_limit());
}

}  // namespace detail

std::span<std::byte> staging_slot::bytes() const noexcept {
  if (data_ == nullptr) return {};
  return {data_, state_->options().slot_size};
}

void staging_slot::reset() noexcept {
  std::byte* const data = std::exchange(data_, nullptr);
  if (data != nullptr) std::exchange(state_, nullptr)->give_back(data);
}

staging_pool::staging_pool(staging_options options, std::shared_ptr<cuda_device> target,
                           blocking_pool& helpers)
    : state_(std::make_shared<detail::staging_state>(options, std::move(target), helpers)) {}

staging_pool::~staging_pool() { state_->close(); }

const staging_options& staging_pool::options() const noexcept { return state_->options(); }

task<result<staging_slot>> staging_pool::acquire() { return state_->acquire(); }

std::size_t staging_pool::pinned() const noexcept { return state_->pinned(); }

}  // namespace headrace
