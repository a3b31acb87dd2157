#include <headrace/io/operation.hpp>

#include "io/engine.hpp"

#include <cerrno>

namespace headrace::detail {

bool operation::start(environment given, std::coroutine_handle<> coroutine) {
  HEADRACE_ASSERT(context_.on_this_thread());
  environment_ = std::move(given);
  coroutine_ = coroutine;
  if (environment_.stop.stop_requested()) {
    result_ = -ECANCELED;
    return false;
  }
  result_ = context_.engine().start(*this);
  if (result_ < 0) return false;
  context_.wake_host();
  // Completions come from wait() alone, so the operation cannot be over yet. A stop that comes
  // while this registers posts to the loop, which is busy here.
  if (environment_.stop.stop_possible()) stop_callback_.emplace(environment_.stop, on_stop{this});
  return true;
}

void operation::complete(int result) noexcept {
  // A read in a worker of the kernel is cancelled by interrupting it.
  result_ = result == -EINTR && cancel_ran_ ? -ECANCELED : result;
  completed_ = true;
  stop_callback_.reset();
  // A cancel item that is still queued on the loop refers to this operation: it resumes the
  // coroutine when it has run.
  if (cancel_posted_ && !cancel_ran_) return;
  resume();
}

void operation::resume() noexcept {
  if (environment_.executor == &context_) {
    coroutine_.resume();
  } else {
    resume_.resume_on(environment_.executor, coroutine_);
  }
}

void operation::on_stop::operator()() const noexcept {
  stopped->cancel_posted_ = true;
  stopped->context_.post(stopped->cancel_item_);
}

void operation::cancel_item::run_cancel(work_item& item) noexcept {
  operation& cancelled = static_cast<cancel_item&>(item).target;
  cancelled.cancel_ran_ = true;
  if (cancelled.completed_) {
    cancelled.resume();
  } else {
    cancelled.context_.engine().cancel(cancelled);
  }
}

std::error_code operation::code() const noexcept {
  if (result_ == -ECANCELED) return make_error_code(errc::cancelled);
  return {-result_, std::system_category()};
}

}  // namespace headrace::detail
