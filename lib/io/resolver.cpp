#include <headrace/io/resolver.hpp>

#include "io/engine.hpp"

#include <headrace/coro/async_condition.hpp>
#include <headrace/coro/async_scope.hpp>
#include <headrace/coro/with.hpp>
#include <headrace/io/inherited.hpp>

#include <ares.h>
#include <poll.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <array>
#include <mutex>
#include <utility>

namespace headrace {
namespace {

/// c-ares wants its global state set up once a process. Never undone: another library may use it
/// too.
int ares_ready() {
  static const int status = ares_library_init(ARES_LIB_INIT_ALL);
  return status;
}

}  // namespace

/// c-ares opens and closes sockets as it likes. An epoll instance of our own collects them, so that
/// the loop has one descriptor to watch, under either backend.
class resolver::state {
 public:
  explicit state(io_context& context) : context_(context) {}
  state(const state&) = delete;
  state& operator=(const state&) = delete;
  ~state() {
    HEADRACE_ASSERT(queries_ == 0);
    if (channel_ != nullptr) ares_destroy(channel_);
    if (watched_ != nullptr) context_.engine().release(std::move(watched_));
  }

  task<result<std::vector<endpoint>>> resolve(std::string host, std::uint16_t port) {
    if (auto prepared = prepare(); !prepared) co_return failure{prepared.error()};

    query asked;
    ares_addrinfo_hints hints{};
    hints.ai_family = AF_UNSPEC;
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = ARES_AI_ADDRCONFIG;
    ++queries_;
    do {
      asked = {};
      ares_getaddrinfo(channel_, host.c_str(), std::to_string(port).c_str(), &hints, &answered,
                       &asked);
      auto driven = co_await drive(&asked);
      if (!driven) {
        --queries_;
        co_return failure{driven.error()};
      }
      // Cancelled, and not by us: another query of this loop was stopped, and c-ares cancels all or
      // none.
    } while (asked.status == ARES_ECANCELLED);
    --queries_;

    if (asked.status != ARES_SUCCESS || asked.addresses.empty()) {
      const char* const why =
          asked.status != ARES_SUCCESS ? ares_strerror(asked.status) : "it has no address";
      co_return failure{error(errc::connect_error, "cannot resolve host '" + host + "': " + why)};
    }
    co_return std::move(asked.addresses);
  }

 private:
  struct query {
    bool finished = false;
    int status = ARES_SUCCESS;
    std::vector<endpoint> addresses;
  };

  result<void> prepare() {
    if (channel_ != nullptr) return {};
    if (const int status = ares_ready(); status != ARES_SUCCESS) {
      return failure{
          error(errc::internal, std::string("cannot start c-ares: ") + ares_strerror(status))};
    }
    if (watched_ == nullptr) {
      const int number = ::epoll_create1(EPOLL_CLOEXEC);
      if (number < 0)
        return failure{
            system_failure({errno, std::system_category()}, "cannot create an epoll instance")};
      watched_ = std::make_unique<detail::descriptor>();
      watched_->number = number;
      detail::inherited_descriptors::add(number);
    }
    ares_options options{};
    options.sock_state_cb = &socket_changed;
    options.sock_state_cb_data = this;
    // 2, 4, then 8 s a server: what c-ares takes by itself, four tries from 5 s on, is 75 s for a
    // server that is down.
    options.timeout = 2000;
    options.tries = 3;
    constexpr int given = ARES_OPT_SOCK_STATE_CB | ARES_OPT_TIMEOUTMS | ARES_OPT_TRIES;
    if (const int status = ares_init_options(&channel_, &options, given); status != ARES_SUCCESS) {
      channel_ = nullptr;
      return failure{
          error(errc::connect_error,
                std::string("cannot read the resolver configuration: ") + ares_strerror(status))};
    }
    return {};
  }

  static void socket_changed(void* data, ares_socket_t number, int readable,
                             int writable) noexcept {
    const auto& self = *static_cast<state*>(data);
    epoll_event event{};
    event.events =
        (readable != 0 ? unsigned{EPOLLIN} : 0u) | (writable != 0 ? unsigned{EPOLLOUT} : 0u);
    event.data.fd = number;
    const int epoll = self.watched_->number;
    if (event.events == 0) {
      static_cast<void>(::epoll_ctl(epoll, EPOLL_CTL_DEL, number, nullptr));
    } else if (::epoll_ctl(epoll, EPOLL_CTL_MOD, number, &event) != 0) {
      static_cast<void>(::epoll_ctl(epoll, EPOLL_CTL_ADD, number, &event));
    }
  }

  static void answered(void* data, int status, int /*timeouts*/, ares_addrinfo* found) noexcept {
    auto& asked = *static_cast<query*>(data);
    asked.finished = true;
    asked.status = status;
    if (found == nullptr) return;
    for (const ares_addrinfo_node* node = found->nodes; node != nullptr; node = node->ai_next) {
      asked.addresses.emplace_back(node->ai_addr, static_cast<socklen_t>(node->ai_addrlen));
    }
    ares_freeaddrinfo(found);
  }

  /// Serves c-ares until `asked` is answered. One of the coroutines that wait serves for all; the
  /// others wait for it.
  task<result<void>> drive(query* asked) {
    const environment given = co_await current_environment();
    while (!asked->finished) {
      if (given.stop.stop_requested()) {
        ares_cancel(channel_);  // calls back for every query; the others ask again
        if (turn_ != nullptr) turn_->request_stop();
        HEADRACE_ASSERT(asked->finished);
        co_return failure{error(errc::cancelled, "stopped while resolving a host name")};
      }
      if (driving_) {
        std::unique_lock lock(mutex_);
        [[maybe_unused]] const bool turned = co_await turned_.wait(lock);
        continue;
      }
      driving_ = true;
      co_await turn();
      driving_ = false;
      async_condition::wake_list woken;
      const std::lock_guard lock(mutex_);
      turned_.notify_all(woken);
    }
    co_return result<void>();
  }

  /// Waits until a socket of c-ares is ready or its next time limit is there, and lets it work.
  task<void> turn() {
    timeval limit{};
    std::chrono::nanoseconds left = std::chrono::seconds(1);
    if (ares_timeout(channel_, nullptr, &limit) != nullptr) {
      left = std::chrono::seconds(limit.tv_sec) + std::chrono::microseconds(limit.tv_usec);
    }
    environment given = co_await current_environment();
    {
      std::stop_source either;
      const std::stop_callback inherited(given.stop, detail::request_stop{&either});
      detail::deadline_timer timer(context_, either);
      context_.start_timer(timer, context_.now() + left);
      given.stop = either.get_token();
      turn_ = &either;
      auto polling = poll();
      auto running = std::move(polling).under(std::move(given));
      co_await running;
      turn_ = nullptr;
    }
    std::array<epoll_event, 16> events;  // NOLINT: filled by the kernel
    const int count =
        ::epoll_wait(watched_->number, events.data(), static_cast<int>(events.size()), 0);
    for (int at = 0; at < count; ++at) {
      const int number = events[at].data.fd;
      const bool readable = (events[at].events & ~unsigned{EPOLLOUT}) != 0;
      const bool writable = (events[at].events & EPOLLOUT) != 0;
      ares_process_fd(channel_, readable ? number : ARES_SOCKET_BAD,
                      writable ? number : ARES_SOCKET_BAD);
    }
    if (count <= 0) ares_process_fd(channel_, ARES_SOCKET_BAD, ARES_SOCKET_BAD);
  }

  task<void> poll() {
    io_operation<int> ready(context_, watched_.get(), detail::operation_kind::poll,
                            {.events = POLLIN});
    [[maybe_unused]] const auto polled = co_await ready;
  }

  io_context& context_;
  ares_channel channel_ = nullptr;
  std::unique_ptr<detail::descriptor> watched_;
  std::size_t queries_ = 0;
  bool driving_ = false;
  std::stop_source* turn_ = nullptr;  ///< ends the wait of the coroutine that drives
  std::mutex mutex_;                  // the condition wants one; the loop's thread alone takes it
  async_condition turned_;
};

resolver::resolver(io_context& context) : state_(std::make_unique<state>(context)) {}
resolver::~resolver() = default;

task<result<std::vector<endpoint>>> resolver::resolve(std::string host, std::uint16_t port) {
  if (const auto literal = endpoint::from_literal(host, port)) {
    co_return std::vector<endpoint>{*literal};
  }
  if (host.empty() || host.find('\0') != std::string::npos) {
    co_return failure{error(errc::connect_error, "cannot resolve host '" + host + "': not a name")};
  }
  auto resolved = co_await state_->resolve(std::move(host), port);
  co_return resolved;
}

}  // namespace headrace
