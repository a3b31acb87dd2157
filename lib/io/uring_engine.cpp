#include "io/engine.hpp"

#include <headrace/io/inherited.hpp>

#include <liburing.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>
#include <utility>
#include <vector>

namespace headrace::detail {
namespace {

constexpr unsigned submission_entries = 512;
constexpr unsigned completion_entries = 4096;

/// The most bytes that one operation asks for: an entry counts them in 32 bits, and a result in 31.
constexpr std::size_t largest_transfer = std::size_t{1} << 30;

/// A ring of one thread.
///
/// DEFER_TASKRUN keeps the kernel from interrupting the thread: completions are made when the
/// thread asks for them, so every reaping path enters the kernel with GETEVENTS.
class uring_engine final : public io_engine {
 public:
  uring_engine() = default;
  uring_engine(const uring_engine&) = delete;
  uring_engine& operator=(const uring_engine&) = delete;
  ~uring_engine() override {
    if (!opened_) return;
    inherited_descriptors::forget(ring_.ring_fd);
    io_uring_queue_exit(&ring_);
  }

  /// Whether the kernel gave a ring: the newest set-up first, then what older kernels know.
  bool open() {
    constexpr std::array<unsigned, 3> flag_sets = {
        IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN, IORING_SETUP_COOP_TASKRUN, 0};
    for (const unsigned flags : flag_sets) {
      io_uring_params parameters{};
      parameters.flags = flags | IORING_SETUP_CQSIZE | IORING_SETUP_CLAMP;
      parameters.cq_entries = completion_entries;
      const int opened = io_uring_queue_init_params(submission_entries, &ring_, &parameters);
      if (opened == -EINVAL) continue;
      if (opened < 0) return false;
      opened_ = true;
      inherited_descriptors::add(ring_.ring_fd);
      // 5.11: waiting with a timeout in the same system call. 5.5: NODROP. Older kernels get epoll.
      const unsigned needed = IORING_FEAT_EXT_ARG | IORING_FEAT_NODROP;
      return (parameters.features & needed) == needed;
    }
    return false;
  }

  int start(operation& started) override {
    io_uring_sqe* const entry = next_entry();
    prepare(entry, started);
    io_uring_sqe_set_data(entry, &started);
    return 0;
  }

  void cancel(operation& cancelled) noexcept override {
    io_uring_sqe* const entry = next_entry();
    io_uring_prep_cancel(entry, &cancelled, 0);
    io_uring_sqe_set_data(entry, nullptr);
  }

  bool wait(std::optional<steady_time> until) override {
    if (hosted_) return wait_hosted(until);
    if (!wake_armed_) arm_wake();
    if (!aside_.empty()) until = steady_time::min();
    io_uring_cqe* first = nullptr;
    const auto now = std::chrono::steady_clock::now();
    if (!until) {
      io_uring_submit_and_wait(&ring_, 1);
    } else if (*until <= now) {
      io_uring_submit_and_get_events(&ring_);
    } else {
      const auto left = *until - now;
      const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(left);
      __kernel_timespec limit{seconds.count(), (left - seconds).count()};
      io_uring_submit_and_wait_timeout(&ring_, &first, 1, &limit, nullptr);
    }
    // Errors of the calls above (EINTR, ETIME, EBUSY while completions wait) all mean: look at what
    // is there, come again.
    return deliver();
  }

  void wake() noexcept override { wake_event_.signal(); }

  // Polling the ring's own descriptor would never wake: with DEFER_TASKRUN completions are made
  // when they are asked for. A registered eventfd is signalled as soon as there is something to
  // make them from. It is the one that `wake` signals, so no operation of the ring waits for that.
  [[nodiscard]] int serve_host() override {
    HEADRACE_ASSERT(!wake_armed_);
    const int registered = io_uring_register_eventfd(&ring_, wake_event_.number());
    if (registered < 0)
      throw system_failure({-registered, std::system_category()},
                           "cannot have an eventfd signalled by a ring");
    hosted_ = true;
    return wake_event_.number();
  }

  void acknowledge_host() noexcept override { drain_wake(); }

  void release(std::unique_ptr<descriptor> closed) noexcept override {
    inherited_descriptors::close(closed->number);
  }

  [[nodiscard]] int socket_flags() const noexcept override { return 0; }

 private:
  void drain_wake() const noexcept {
    std::uint64_t signals = 0;
    [[maybe_unused]] const auto drained = ::read(wake_event_.number(), &signals, sizeof signals);
  }

  /// For a host's turn, and for `run`, which a hosted loop does only to end: the wait is on the
  /// eventfd, since a poll of it in the ring would signal itself.
  bool wait_hosted(std::optional<steady_time> until) {
    io_uring_submit_and_get_events(&ring_);
    if (deliver()) return true;
    int limit = -1;
    if (until) {
      const auto now = std::chrono::steady_clock::now();
      if (*until <= now) return false;
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(*until - now);
      limit = static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, INT_MAX));
    }
    pollfd watched{.fd = wake_event_.number(), .events = POLLIN, .revents = 0};
    return ::poll(&watched, 1, limit) > 0;
  }

  [[nodiscard]] io_uring_sqe* next_entry() {
    io_uring_sqe* entry = io_uring_get_sqe(&ring_);
    while (entry == nullptr) {
      // Kernels before 6.0 refuse to submit while completions have nowhere to go, and nobody is
      // delivering any here.
      if (io_uring_submit(&ring_) < 0) set_aside();
      entry = io_uring_get_sqe(&ring_);
    }
    return entry;
  }

  struct completion {
    void* data;
    int result;
  };

  void set_aside() {
    unsigned count = 0;
    unsigned head = 0;
    io_uring_cqe* entry = nullptr;
    io_uring_for_each_cqe(&ring_, head, entry) {
      aside_.push_back({io_uring_cqe_get_data(entry), entry->res});
      ++count;
    }
    io_uring_cq_advance(&ring_, count);
  }

  static void prepare(io_uring_sqe* entry, operation& started) {
    const int number = started.target()->number;
    const auto buffers = started.asked.buffers;
    switch (started.kind()) {
      case operation_kind::receive:
        if (buffers.size() == 1) {
          io_uring_prep_recv(entry, number, buffers[0].iov_base,
                             std::min(buffers[0].iov_len, largest_transfer), 0);
        } else {
          io_uring_prep_recvmsg(entry, number, message_of(started), 0);
        }
        break;
      case operation_kind::send:
        if (buffers.size() == 1) {
          io_uring_prep_send(entry, number, buffers[0].iov_base,
                             std::min(buffers[0].iov_len, largest_transfer), MSG_NOSIGNAL);
        } else {
          io_uring_prep_sendmsg(entry, number, message_of(started), MSG_NOSIGNAL);
        }
        break;
      case operation_kind::connect:
        io_uring_prep_connect(entry, number, started.asked.address->data(),
                              started.asked.address->size());
        break;
      case operation_kind::accept:
        io_uring_prep_accept(entry, number, nullptr, nullptr, SOCK_CLOEXEC);
        break;
      case operation_kind::poll:
        io_uring_prep_poll_add(entry, number, started.asked.events);
        break;
      case operation_kind::read_file:
        if (buffers.size() == 1) {
          const auto size = static_cast<unsigned>(std::min(buffers[0].iov_len, largest_transfer));
          io_uring_prep_read(entry, number, buffers[0].iov_base, size, started.asked.offset);
        } else {
          io_uring_prep_readv(entry, number, buffers.data(), static_cast<unsigned>(buffers.size()),
                              started.asked.offset);
        }
        // The page cache is copied by the submitting thread, and tmpfs reads are punted one after
        // another, unless the workers are asked for: with them several cores copy.
        io_uring_sqe_set_flags(entry, IOSQE_ASYNC);
        break;
    }
  }

  static msghdr* message_of(operation& started) {
    started.message = {};
    started.message.msg_iov = const_cast<iovec*>(started.asked.buffers.data());
    started.message.msg_iovlen = started.asked.buffers.size();
    return &started.message;
  }

  void arm_wake() {
    io_uring_sqe* const entry = next_entry();
    io_uring_prep_poll_add(entry, wake_event_.number(), POLLIN);
    io_uring_sqe_set_data(entry, this);
    wake_armed_ = true;
  }

  void deliver_one(const completion& done) {
    if (done.data == this) {
      drain_wake();
      wake_armed_ = false;
    } else if (done.data != nullptr) {
      static_cast<operation*>(done.data)->complete(done.result);
    }
  }

  bool deliver() {
    bool any = !aside_.empty();
    // A resumed coroutine may set more aside: in that vector, not in the one that is walked.
    for (const auto& done : std::exchange(aside_, {})) deliver_one(done);
    std::array<completion, 128> batch;  // NOLINT: filled below
    for (;;) {
      unsigned count = 0;
      unsigned head = 0;
      io_uring_cqe* entry = nullptr;
      io_uring_for_each_cqe(&ring_, head, entry) {
        if (count == batch.size()) break;
        batch[count++] = {io_uring_cqe_get_data(entry), entry->res};
      }
      if (count == 0) return any;
      any = true;
      // Given back before anybody is resumed: a resumed coroutine may submit.
      io_uring_cq_advance(&ring_, count);
      for (unsigned at = 0; at < count; ++at) deliver_one(batch[at]);
      if (count < batch.size()) return any;
    }
  }

  io_uring ring_{};
  bool opened_ = false;
  bool wake_armed_ = false;
  bool hosted_ = false;
  event_descriptor wake_event_;
  std::vector<completion> aside_;  ///< taken from the ring to make room, still to be delivered
};

}  // namespace

std::unique_ptr<io_engine> make_uring_engine() {
  auto engine = std::make_unique<uring_engine>();
  if (!engine->open()) return nullptr;
  return engine;
}

}  // namespace headrace::detail
