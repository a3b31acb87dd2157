#include <headrace/io/resolver.hpp>

#include "io/engine.hpp"
#include "io/name_cache.hpp"

#include <headrace/coro/async_condition.hpp>
#include <headrace/coro/async_scope.hpp>
#include <headrace/coro/with.hpp>
#include <headrace/io/inherited.hpp>

#include <ares.h>
#include <poll.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <limits>
#include <map>
#include <memory>
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

/// As many as anybody will ever try: an answer may hold thousands.
constexpr std::ptrdiff_t most_of_a_family = 16;

/// Names differ in nothing but their letters, which are ASCII whatever the locale.
std::string lower(std::string_view name) {
  std::string lowered(name);
  for (char& c : lowered) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return lowered;
}

std::vector<endpoint> at_port(const std::vector<endpoint>& addresses, std::uint16_t port) {
  std::vector<endpoint> there;
  there.reserve(addresses.size());
  for (const endpoint& address : addresses) there.push_back(address.with_port(port));
  return there;
}

}  // namespace

/// c-ares opens and closes sockets as it likes. An epoll instance of our own collects them, so that
/// the loop has one descriptor to watch, under either backend.
class resolver::state {
 public:
  state(io_context& context, options given) : context_(context), given_(std::move(given)) {}
  state(const state&) = delete;
  state& operator=(const state&) = delete;
  ~state() {
    HEADRACE_ASSERT(awaited_.empty());
    if (channel_ != nullptr) ares_destroy(channel_);
    if (watched_ != nullptr) context_.engine().release(std::move(watched_));
  }

  task<result<std::vector<endpoint>>> resolve(std::string host, std::uint16_t port) {
    const std::string name = lower(host);
    if (const auto* known = kept_.find(name, context_.now())) co_return at_port(*known, port);
    if (auto prepared = prepare(); !prepared) co_return failure{prepared.error()};

    const std::shared_ptr<query> asked = join(name);
    ++asked->waiting;
    auto driven = co_await drive(asked.get());
    --asked->waiting;
    leave(name, *asked);
    if (!driven) {
      co_return failure{
          error(driven.error().kind(), "stopped while host '" + host + "' was resolved")};
    }
    if (asked->status != ARES_SUCCESS || asked->addresses.empty()) {
      const char* const why =
          asked->status != ARES_SUCCESS ? ares_strerror(asked->status) : "it has no address";
      co_return failure{error(errc::connect_error, "cannot resolve host '" + host + "': " + why)};
    }
    co_return at_port(asked->addresses, port);
  }

  void forget(std::string_view host) { kept_.forget(lower(host)); }

 private:
  /// One question to c-ares, and those who wait for its answer.
  struct query {
    state* owner;
    std::string name;
    std::size_t waiting = 0;
    bool finished = false;
    int status = ARES_SUCCESS;
    std::vector<endpoint> addresses;
  };

  /// The query for `name` that is under way, or a new one.
  std::shared_ptr<query> join(const std::string& name) {
    if (const auto known = awaited_.find(name); known != awaited_.end()) return known->second;
    auto asked = std::make_shared<query>();
    asked->owner = this;
    asked->name = name;
    awaited_.emplace(name, asked);
    ares_addrinfo_hints hints{};
    hints.ai_family = AF_UNSPEC;
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = ARES_AI_ADDRCONFIG;
    ++under_way_;
    // c-ares owns a reference until it calls back, which may be at once.
    ares_getaddrinfo(channel_, name.c_str(), nullptr, &hints, &answered,
                     std::make_unique<std::shared_ptr<query>>(asked).release());
    return asked;
  }

  /// One who waited is gone. A query that nobody waits for any more is not joined by those who come
  /// later: nobody may have served it for hours.
  void leave(const std::string& name, const query& asked) {
    if (asked.waiting == 0 && !asked.finished) awaited_.erase(name);
    // c-ares cancels all or none.
    if (awaited_.empty() && under_way_ > 0) ares_cancel(channel_);
  }

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
    if (given_.servers.empty()) return {};
    const int status = ares_set_servers_ports_csv(channel_, given_.servers.c_str());
    if (status != ARES_SUCCESS) {
      ares_destroy(channel_);
      channel_ = nullptr;
      return failure{error(
          errc::invalid_request,
          std::string("the name servers are no addresses with ports: ") + ares_strerror(status))};
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
      // c-ares closes it next.
      detail::inherited_descriptors::forget(number);
      static_cast<void>(::epoll_ctl(epoll, EPOLL_CTL_DEL, number, nullptr));
    } else if (::epoll_ctl(epoll, EPOLL_CTL_MOD, number, &event) != 0) {
      detail::inherited_descriptors::add(number);
      static_cast<void>(::epoll_ctl(epoll, EPOLL_CTL_ADD, number, &event));
    }
  }

  static void answered(void* data, int status, int /*timeouts*/, ares_addrinfo* found) noexcept {
    const std::unique_ptr<std::shared_ptr<query>> held(static_cast<std::shared_ptr<query>*>(data));
    query& asked = **held;
    asked.finished = true;
    asked.status = status;
    if (found != nullptr) {
      const std::chrono::seconds lifetime = asked.owner->take(*found, asked.addresses);
      ares_freeaddrinfo(found);
      if (status == ARES_SUCCESS && !asked.addresses.empty()) {
        asked.owner->kept_.keep(asked.name, asked.addresses, lifetime, asked.owner->context_.now());
      }
    }
    asked.owner->end(asked);
  }

  /// Copies the addresses of an answer, and gives how long they are good.
  static std::chrono::seconds take(const ares_addrinfo& found, std::vector<endpoint>& addresses) {
    int lifetime = std::numeric_limits<int>::max();
    for (const auto* node = found.cnames; node != nullptr; node = node->next)
      lifetime = std::min(lifetime, node->ttl);
    for (const ares_addrinfo_node* node = found.nodes; node != nullptr; node = node->ai_next) {
      lifetime = std::min(lifetime, node->ai_ttl);
      const auto alike = std::count_if(
          addresses.begin(), addresses.end(),
          [node](const endpoint& known) { return known.family() == node->ai_family; });
      if (alike < most_of_a_family)
        addresses.emplace_back(node->ai_addr, static_cast<socklen_t>(node->ai_addrlen));
    }
    return std::chrono::seconds(lifetime);
  }

  void end(const query& asked) noexcept {
    --under_way_;
    const auto known = awaited_.find(asked.name);
    if (known != awaited_.end() && known->second.get() == &asked) awaited_.erase(known);
  }

  /// Serves c-ares until `asked` is answered. One of the coroutines that wait serves for all; the
  /// others wait for it.
  task<result<void>> drive(query* asked) {
    const environment given = co_await current_environment();
    while (!asked->finished) {
      if (given.stop.stop_requested()) co_return failure{error(errc::cancelled, "stopped")};
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
      auto polling = poll();
      auto running = std::move(polling).under(std::move(given));
      co_await running;
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
  const options given_;
  ares_channel channel_ = nullptr;
  std::unique_ptr<detail::descriptor> watched_;
  detail::name_cache kept_;
  std::map<std::string, std::shared_ptr<query>> awaited_;
  std::size_t under_way_ = 0;  ///< queries that c-ares has not called back for, awaited or not
  bool driving_ = false;
  std::mutex mutex_;  // the condition wants one; the loop's thread alone takes it
  async_condition turned_;
};

resolver::resolver(io_context& context, options given)
    : state_(std::make_unique<state>(context, std::move(given))) {}
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

void resolver::forget(std::string_view host) { state_->forget(host); }

}  // namespace headrace
