#include <headrace/coro/async_condition.hpp>

#include <headrace/base/assert.hpp>

namespace headrace {

void async_condition::append(wait_operation& waiter) noexcept {
  waiter.next_ = nullptr;
  waiter.previous_ = last_;
  (last_ != nullptr ? last_->next_ : first_) = &waiter;
  last_ = &waiter;
}

void async_condition::remove(wait_operation& waiter) noexcept {
  (waiter.previous_ != nullptr ? waiter.previous_->next_ : first_) = waiter.next_;
  (waiter.next_ != nullptr ? waiter.next_->previous_ : last_) = waiter.previous_;
}

void async_condition::notify_one(wake_list& woken) noexcept {
  if (first_ == nullptr) return;
  wait_operation& waiter = *first_;
  remove(waiter);
  waiter.outcome_ = wait_operation::outcome::notified;
  if (!waiter.suspended_)
    return;  // still on its way into suspension: it will find the outcome there
  waiter.next_ = nullptr;
  *woken.last_ = &waiter;
  woken.last_ = &waiter.next_;
}

void async_condition::notify_all(wake_list& woken) noexcept {
  while (first_ != nullptr) notify_one(woken);
}

async_condition::wake_list::~wake_list() {
  while (first_ != nullptr) {
    wait_operation& waiter = *first_;
    first_ = waiter.next_;  // before resuming: the waiter may be gone afterwards
    waiter.resume();
  }
}

bool async_condition::wait_operation::suspend() {
  HEADRACE_ASSERT(lock_.owns_lock());
  mutex_ = lock_.mutex();
  condition_.append(*this);

  if (stoppable_ && environment_.stop.stop_possible()) {
    // The callback takes the mutex, so it is registered without it. Until `suspended_` is set,
    // nobody resumes us: whoever decides the outcome meanwhile only leaves it here.
    lock_.unlock();
    stop_callback_.emplace(environment_.stop, on_stop{this});
    lock_.lock();
    if (outcome_ != outcome::waiting) return false;
  }
  suspended_ = true;
  // Not lock_.unlock(): it writes to the lock after it has released the mutex, when we may already
  // run on another thread.
  lock_.release()->unlock();
  return true;
}

void async_condition::wait_operation::stopped() noexcept {
  {
    const std::lock_guard lock(*mutex_);
    if (outcome_ != outcome::waiting) return;
    outcome_ = outcome::stopped;
    condition_.remove(*this);
    if (!suspended_) return;
  }
  resume();
}

bool async_condition::wait_operation::await_resume() {
  if (lock_.owns_lock()) {
    // Never suspended. A callback that has yet to begin must not wait for the mutex that we hold
    // while we wait for it.
    lock_.unlock();
    stop_callback_.reset();
    lock_.lock();
  } else {
    stop_callback_.reset();
    lock_ = std::unique_lock(*mutex_);
  }
  return outcome_ == outcome::notified;
}

}  // namespace headrace
