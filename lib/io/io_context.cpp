#include <headrace/io/io_context.hpp>

#include "io/engine.hpp"

#include <headrace/base/log.hpp>
#include <headrace/io/inherited.hpp>

#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>

namespace headrace {

std::string_view to_string(io_backend backend) noexcept {
  switch (backend) {
    case io_backend::uring:
      return "uring";
    case io_backend::epoll:
      return "epoll";
    case io_backend::automatic:
      break;
  }
  return "auto";
}

result<io_backend> io_backend_from_environment() {
  const char* const value = std::getenv("HEADRACE_IO");
  const std::string_view name = value != nullptr ? value : "";
  if (name.empty() || name == "auto") return io_backend::automatic;
  if (name == "uring") return io_backend::uring;
  if (name == "epoll") return io_backend::epoll;
  return failure{error(errc::invalid_request, "HEADRACE_IO is '" + std::string(name) +
                                                  "': it takes uring, epoll or auto")};
}

io_backend resolve_backend(io_backend wanted) {
  if (wanted != io_backend::automatic) return wanted;
  static const io_backend found = [] {
    const bool uring = detail::make_uring_engine() != nullptr;
    log(log_level::info, uring ? "I/O by io_uring"
                               : "I/O by epoll: the kernel or a seccomp profile refuses io_uring");
    return uring ? io_backend::uring : io_backend::epoll;
  }();
  return found;
}

struct io_context::stop_item final : work_item {
  explicit stop_item(io_context& owner) noexcept : work_item(&run_stop), context(owner) {}
  static void run_stop(work_item& item) noexcept {
    auto& self = static_cast<stop_item&>(item);
    self.context.stopping_ = true;
    // Release: whoever posts it next sees that it has left the queue.
    self.posted.store(false, std::memory_order_release);
  }
  io_context& context;
  std::atomic<bool> posted{false};
};

io_context::io_context(options given)
    : backend_(resolve_backend(given.backend)),
      helpers_(given.helpers),
      stop_(std::make_unique<stop_item>(*this)) {
  engine_ = backend_ == io_backend::uring ? detail::make_uring_engine()
                                          : detail::make_epoll_engine(*this);
  if (engine_ == nullptr) {
    throw error(
        errc::unsupported,
        "the kernel refuses io_uring (a seccomp profile, or kernel.io_uring_disabled): set HEADRACE_IO=epoll or auto");
  }
}

io_context::~io_context() {
  HEADRACE_ASSERT(on_this_thread());
  // A thread whose item has run may not have left `post` yet: it still has to write the eventfd.
  // The acquire pairs with its last release, and its increment came before the item that we have
  // seen.
  while (posting_.load(std::memory_order_acquire) != 0) std::this_thread::yield();
}

void io_context::run() {
  HEADRACE_ASSERT(on_this_thread() && !turning_);
  turning_ = true;
  while (!stopping_) turn(true);
  turning_ = false;
  stopping_ = false;
}

/// One round of everything; whether anything was done, so that there may be more to do at once.
bool io_context::turn(bool may_wait) {
  // Before the posted work is looked at: what is posted from here on is signalled again.
  if (hosted_) engine_->acknowledge_host();
  const bool more = run_posted();
  timers_.run_due(now());
  if (stopping_ && may_wait) return true;  // `stop` is about `run` alone
  const bool posted = more || !local_.empty();
  const bool spare = !idle_.empty();
  const bool delivered = engine_->wait(
      posted || spare || !may_wait ? std::optional(steady_time::min()) : timers_.next());
  // Work for idle times goes first only where it has waited long enough.
  if (spare && ((!posted && !delivered && local_.empty()) || now() - idle_since_ > idle_patience))
    run_idle();
  return posted || spare || delivered || !local_.empty();
}

int io_context::host_descriptor() {
  HEADRACE_ASSERT(on_this_thread());
  if (!hosted_) {
    host_descriptor_ = engine_->serve_host();
    hosted_ = true;
    // What was posted before has woken nobody.
    if (!local_.empty() || timers_.next()) signal_host();
  }
  return host_descriptor_;
}

std::optional<steady_time> io_context::poll() {
  HEADRACE_ASSERT(hosted_ && on_this_thread() && !turning_);
  turning_ = true;
  host_woken_ = false;
  // What a turn has resumed may have started something: only a turn in which nothing happened has
  // submitted everything and seen that no completion is left.
  const bool again = turn(false) || !idle_.empty();
  turning_ = false;
  return again ? std::optional(steady_time::min()) : timers_.next();
}

void io_context::signal_host() noexcept {
  host_woken_ = true;
  engine_->wake();
}

void io_context::post_when_idle(work_item& item) {
  HEADRACE_ASSERT(on_this_thread());
  if (idle_.empty()) idle_since_ = now();
  idle_.push(item);
  wake_host();
}

void io_context::run_idle() noexcept {
  work_item* const item = idle_.pop();
  item->run(*item);
  idle_since_ = now();
}

bool io_context::run_posted() {
  // Acquire: what the poster wrote before it posted is visible to the item. The stack comes newest
  // first.
  work_item* stack = remote_.exchange(nullptr, std::memory_order_acquire);
  work_item* oldest = nullptr;
  while (stack != nullptr) {
    work_item* const next = stack->next;
    stack->next = oldest;
    oldest = stack;
    stack = next;
  }
  while (oldest != nullptr) {
    work_item* const next = oldest->next;
    local_.push(*oldest);
    oldest = next;
  }
  // Only what is queued now: an item that posts itself again must not keep the loop from the
  // kernel.
  struct end_mark final : work_item {
  } mark;
  if (local_.empty()) return false;
  local_.push(mark);
  while (work_item* item = local_.pop()) {
    if (item == &mark) break;
    item->run(*item);
  }
  return !local_.empty();
}

void io_context::stop() noexcept {
  if (!stop_->posted.exchange(true, std::memory_order_acquire)) post(*stop_);
}

void io_context::post(work_item& item) noexcept {
  if (on_this_thread()) {
    local_.push(item);
    wake_host();
    return;
  }
  // Relaxed: the push below releases it together with the item.
  posting_.fetch_add(1, std::memory_order_relaxed);
  work_item* head = remote_.load(std::memory_order_relaxed);
  do {
    item.next = head;
    // Release: pairs with the exchange in run_posted.
  } while (!remote_.compare_exchange_weak(head, &item, std::memory_order_release,
                                          std::memory_order_relaxed));
  // Whoever makes the stack non-empty wakes the loop; the loop empties it before it sleeps again.
  if (head == nullptr) engine_->wake();
  posting_.fetch_sub(1,
                     std::memory_order_release);  // the last touch: the loop may be gone afterwards
}

int io_context::socket_flags() const noexcept { return engine_->socket_flags(); }

namespace detail {

event_descriptor::event_descriptor() : number_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (number_ < 0)
    throw system_failure({errno, std::system_category()}, "cannot create an eventfd");
  inherited_descriptors::add(number_);
}

event_descriptor::~event_descriptor() { inherited_descriptors::close(number_); }

void event_descriptor::signal() const noexcept {
  const std::uint64_t one = 1;
  // Fails only when the counter is full, and then the loop is awake anyway.
  [[maybe_unused]] const auto written = ::write(number_, &one, sizeof one);
}

}  // namespace detail
}  // namespace headrace
