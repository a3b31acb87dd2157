#include "event_executor.hpp"

#include <headrace/base/error.hpp>

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <utility>

namespace headrace::python {
namespace {

int open_event() {
  const int opened = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (opened < 0)
    throw system_failure({errno, std::system_category()}, "cannot make an event descriptor");
  return opened;
}

}  // namespace

event_executor::event_executor() : descriptor_(open_event()) {}

event_executor::~event_executor() { ::close(descriptor_); }

void event_executor::post(work_item& item) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (!abandoned_) {
      items_.push(item);
      // Written under the lock: once the owner has it, nobody is in here any more, and the owner
      // may drop the executor.
      if (!std::exchange(signalled_, true)) {
        const std::uint64_t one = 1;
        static_cast<void>(!::write(descriptor_, &one, sizeof one));
      }
      return;
    }
  }
  // The item may be the last that holds the executor.
  const auto kept = shared_from_this();
  item.run(item);
}

work_item* event_executor::take() noexcept {
  const std::lock_guard lock(mutex_);
  return items_.pop();
}

void event_executor::run_ready() noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (signalled_) {
      std::uint64_t count = 0;
      static_cast<void>(!::read(descriptor_, &count, sizeof count));
      signalled_ = false;
    }
  }
  while (work_item* const item = take()) item->run(*item);
}

bool event_executor::wait(std::chrono::milliseconds limit) const noexcept {
  pollfd waited{.fd = descriptor_, .events = POLLIN, .revents = 0};
  return ::poll(&waited, 1, limit.count() < 0 ? -1 : static_cast<int>(limit.count())) > 0;
}

void event_executor::abandon() noexcept {
  const auto kept = shared_from_this();
  {
    const std::lock_guard lock(mutex_);
    abandoned_ = true;
  }
  while (work_item* const item = take()) item->run(*item);
}

}  // namespace headrace::python
