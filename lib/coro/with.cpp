#include <headrace/coro/with.hpp>

namespace headrace::detail {

bool sleep_operation::start() {
  timers_ = environment_.executor != nullptr ? environment_.executor->timers() : nullptr;
  if (timers_ == nullptr) throw error(errc::unsupported, "sleep_for needs an executor with timers");
  if (environment_.stop.stop_requested()) {
    cancelled_ = true;
    return false;
  }
  timers_->start_timer(*this, deadline_after(timers_->now(), duration_));
  stop_callback_.emplace(environment_.stop, on_stop{this});
  return true;
}

void sleep_operation::on_stop::operator()() const noexcept {
  sleep->stop_posted_ = true;
  sleep->environment_.executor->post(sleep->stop_item_);
}

void sleep_operation::fire(timer_item& item) noexcept {
  auto& sleep = static_cast<sleep_operation&>(item);
  sleep.fired_ = true;
  sleep.finish();
}

void sleep_operation::stop_item::run_stop(work_item& item) noexcept {
  auto& sleep = static_cast<stop_item&>(item).sleep;
  sleep.stop_ran_ = true;
  if (!sleep.fired_) {
    sleep.timers_->cancel_timer(sleep);
    sleep.cancelled_ = true;
  }
  sleep.finish();
}

void sleep_operation::finish() noexcept {
  stop_callback_.reset();
  // The stop item is still queued at the executor: it resumes us when it has run.
  if (stop_posted_ && !stop_ran_) return;
  coroutine_.resume();
}

void sleep_operation::await_resume() const {
  if (cancelled_) throw error(errc::cancelled, "stopped while waiting");
}

}  // namespace headrace::detail
