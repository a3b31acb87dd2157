#include "io/engine.hpp"

#include <headrace/io/blocking_pool.hpp>
#include <headrace/io/inherited.hpp>

#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <vector>

namespace headrace::detail {
namespace {

/// A file read on a helper thread, which comes back to the loop as posted work.
struct file_read final : work_item {
  file_read(operation& read, io_context& loop) noexcept
      : work_item(&on_helper), target(read), context(loop) {}

  static void on_helper(work_item& item) noexcept {
    auto& self = static_cast<file_read&>(item);
    const auto& buffers = self.target.asked.buffers;
    const auto count =
        ::preadv(self.target.target()->number, buffers.data(), static_cast<int>(buffers.size()),
                 static_cast<off_t>(self.target.asked.offset));
    self.result = count < 0 ? -errno : static_cast<int>(count);
    self.run = &on_loop;
    self.context.post(self);
  }
  static void on_loop(work_item& item) noexcept {
    const std::unique_ptr<file_read> self(static_cast<file_read*>(&item));
    self->target.complete(self->result);
  }

  operation& target;
  io_context& context;
  int result = 0;
};

/// Readiness by epoll, edge-triggered: each operation is tried once the loop waits, and again after
/// each event on its descriptor. Nothing completes inside `start`, so that a fast peer can neither
/// overflow the stack nor keep the loop from its other work.
class epoll_engine final : public io_engine {
 public:
  explicit epoll_engine(io_context& context)
      : context_(context), epoll_(::epoll_create1(EPOLL_CLOEXEC)) {
    if (epoll_ < 0)
      throw system_failure({errno, std::system_category()}, "cannot create an epoll instance");
    epoll_event event{.events = EPOLLIN, .data = {.ptr = nullptr}};
    if (::epoll_ctl(epoll_, EPOLL_CTL_ADD, wake_event_.number(), &event) != 0) {
      ::close(epoll_);
      throw system_failure({errno, std::system_category()}, "cannot watch an eventfd");
    }
    inherited_descriptors::add(epoll_);
  }
  epoll_engine(const epoll_engine&) = delete;
  epoll_engine& operator=(const epoll_engine&) = delete;
  ~epoll_engine() override { inherited_descriptors::close(epoll_); }

  int start(operation& started) override {
    if (started.kind() == operation_kind::read_file) {
      HEADRACE_ASSERT(context_.helpers() != nullptr);
      auto read = std::make_unique<file_read>(started, context_);
      context_.helpers()->submit(*read);
      static_cast<void>(read.release());  // comes back to the loop, which frees it
      return 0;
    }
    descriptor& target = *started.target();
    if (!target.watched) {
      const int watched = watch(target);
      if (watched < 0) return watched;
    }
    HEADRACE_ASSERT(slot(started) == nullptr);
    attempt_later(started);
    slot(started) = &started;
    return 0;
  }

  void cancel(operation& cancelled) noexcept override {
    // A read on a helper thread ends by itself; its memory is its own until then.
    if (cancelled.kind() == operation_kind::read_file) return;
    slot(cancelled) = nullptr;
    // Only posted work cancels, never a completion: so it is not in a round that is being tried.
    if (cancelled.queued) std::erase(attempts_, &cancelled);
    cancelled.complete(-ECANCELED);
  }

  bool wait(std::optional<steady_time> until) override {
    const bool progressed = attempt();
    int limit = -1;
    if (progressed || !attempts_.empty()) {
      limit = 0;
    } else if (until) {
      const auto now = std::chrono::steady_clock::now();
      limit = 0;
      if (*until > now) {
        // Rounded up: waking a little late beats waking early and spinning.
        const auto left = std::chrono::ceil<std::chrono::milliseconds>(*until - now);
        limit = static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, INT_MAX));
      }
    }
    std::array<epoll_event, 256> events;  // NOLINT: filled by the kernel
    const int count = ::epoll_wait(epoll_, events.data(), static_cast<int>(events.size()), limit);
    for (int at = 0; at < count; ++at) {
      auto* const target = static_cast<descriptor*>(events[at].data.ptr);
      if (target == nullptr) {
        std::uint64_t signals = 0;
        [[maybe_unused]] const auto drained =
            ::read(wake_event_.number(), &signals, sizeof signals);
        continue;
      }
      const unsigned happened = events[at].events;
      // Urgent data counts too: a receive stops at its mark with a short count although more is
      // there.
      if ((happened & (EPOLLHUP | EPOLLRDHUP | EPOLLERR | EPOLLPRI)) != 0) target->finished = true;
      if ((happened & (EPOLLIN | EPOLLHUP | EPOLLRDHUP | EPOLLERR)) != 0) target->readable = true;
      if ((happened & (EPOLLOUT | EPOLLHUP | EPOLLERR)) != 0) target->writable = true;
      // A poll asks for itself what it waits for, which may be room to write.
      if (target->reading != nullptr &&
          (target->readable || target->reading->kind() == operation_kind::poll)) {
        attempt_later(*target->reading);
      }
      if (target->writable && target->writing != nullptr) attempt_later(*target->writing);
    }
    const bool more = attempt();
    closed_.clear();
    return progressed || more || count > 0;
  }

  void wake() noexcept override { wake_event_.signal(); }

  // An epoll instance is readable while it has events to give, the wake-up's among them: that one
  // counts as a delivery, after which the host comes again.
  [[nodiscard]] int serve_host() override { return epoll_; }

  void release(std::unique_ptr<descriptor> closed) noexcept override {
    HEADRACE_ASSERT(closed->reading == nullptr && closed->writing == nullptr);
    // Closing alone does not end the watch where a forked child still holds the same file: its
    // events would point to freed memory.
    if (closed->watched)
      static_cast<void>(::epoll_ctl(epoll_, EPOLL_CTL_DEL, closed->number, nullptr));
    inherited_descriptors::close(closed->number);
    // An event of this round may still point to it.
    closed_.push_back(std::move(closed));
  }

  [[nodiscard]] int socket_flags() const noexcept override { return SOCK_NONBLOCK; }

 private:
  static bool writes(const operation& started) noexcept {
    return started.kind() == operation_kind::send || started.kind() == operation_kind::connect;
  }

  static operation*& slot(operation& started) noexcept {
    return writes(started) ? started.target()->writing : started.target()->reading;
  }

  int watch(descriptor& target) noexcept {
    epoll_event event{.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLPRI | EPOLLET,
                      .data = {.ptr = &target}};
    if (::epoll_ctl(epoll_, EPOLL_CTL_ADD, target.number, &event) != 0) return -errno;
    target.watched = true;
    return 0;
  }

  void attempt_later(operation& started) {
    if (std::exchange(started.queued, true)) return;
    attempts_.push_back(&started);
  }

  /// Tries what is due once; whether anything completed.
  bool attempt() {
    bool progressed = false;
    round_.swap(attempts_);
    for (operation* const tried : round_) {
      tried->queued = false;
      const auto done = attempt_now(*tried);
      if (!done) continue;
      slot(*tried) = nullptr;
      progressed = true;
      tried->complete(*done);
    }
    round_.clear();
    return progressed;
  }

  /// The outcome, or nothing where it has to wait for an event.
  static std::optional<int> attempt_now(operation& tried) {
    descriptor& target = *tried.target();
    const auto outcome = call(tried);
    if (outcome >= 0) {
      // A short count drained the socket; what comes later raises a new event, but for an end that
      // was announced already.
      if (tried.kind() == operation_kind::receive && !target.finished &&
          static_cast<std::size_t>(outcome) < total_size(tried.asked.buffers)) {
        target.readable = false;
      }
      return outcome;
    }
    if (outcome == -EAGAIN || outcome == -EINPROGRESS) {
      (writes(tried) ? target.writable : target.readable) = false;
      return std::nullopt;
    }
    return outcome;
  }

  static int call(operation& tried) {
    descriptor& target = *tried.target();
    const auto counted = [](ssize_t count) { return count < 0 ? -errno : static_cast<int>(count); };
    switch (tried.kind()) {
      case operation_kind::receive:
        if (!target.readable) return -EAGAIN;
        if (tried.asked.buffers.size() == 1) {
          return counted(::recv(target.number, tried.asked.buffers[0].iov_base,
                                tried.asked.buffers[0].iov_len, 0));
        }
        tried.message = {};
        tried.message.msg_iov = const_cast<iovec*>(tried.asked.buffers.data());
        tried.message.msg_iovlen = tried.asked.buffers.size();
        return counted(::recvmsg(target.number, &tried.message, 0));
      case operation_kind::send:
        tried.message = {};
        tried.message.msg_iov = const_cast<iovec*>(tried.asked.buffers.data());
        tried.message.msg_iovlen = tried.asked.buffers.size();
        return counted(::sendmsg(target.number, &tried.message, MSG_NOSIGNAL));
      case operation_kind::connect:
        return connect(tried);
      case operation_kind::accept:
        return counted(::accept4(target.number, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      case operation_kind::poll: {
        pollfd polled{
            .fd = target.number, .events = static_cast<short>(tried.asked.events), .revents = 0};
        const int ready = ::poll(&polled, 1, 0);
        if (ready < 0) return -errno;
        return ready == 0 ? -EAGAIN : polled.revents;
      }
      case operation_kind::read_file:
        break;
    }
    return -EINVAL;
  }

  static int connect(operation& tried) {
    const int number = tried.target()->number;
    if (!std::exchange(tried.connecting, true)) {
      return ::connect(number, tried.asked.address->data(), tried.asked.address->size()) == 0
                 ? 0
                 : -errno;
    }
    int failed = 0;
    socklen_t size = sizeof failed;
    if (::getsockopt(number, SOL_SOCKET, SO_ERROR, &failed, &size) != 0) return -errno;
    if (failed != 0) return -failed;
    // An event can come before the connection stands: then there is no peer yet.
    sockaddr_storage peer{};
    socklen_t peer_size = sizeof peer;
    if (::getpeername(number, reinterpret_cast<sockaddr*>(&peer), &peer_size) != 0) {
      return errno == ENOTCONN ? -EINPROGRESS : -errno;
    }
    return 0;
  }

  io_context& context_;
  int epoll_;
  event_descriptor wake_event_;
  std::vector<operation*> attempts_;
  std::vector<operation*> round_;
  std::vector<std::unique_ptr<descriptor>> closed_;
};

}  // namespace

std::unique_ptr<io_engine> make_epoll_engine(io_context& context) {
  return std::make_unique<epoll_engine>(context);
}

}  // namespace headrace::detail
