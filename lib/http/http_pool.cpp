#include <headrace/http/http_pool.hpp>

#include "http/http_proxy.hpp"

#include <headrace/base/assert.hpp>

#include <algorithm>
#include <utility>

namespace headrace {

http_pool::http_pool(timer_service& timers, http_connector& connector, options limits)
    : timers_(timers), connector_(connector), limits_(limits) {}

http_pool::~http_pool() {
  for (const auto& [route, members] : groups_) HEADRACE_ASSERT(members.users == 0);
  timers_.cancel_timer(timer_);
}

task<result<http_lease>> http_pool::acquire(http_route route) {
  http_lease lease(*this, groups_.try_emplace(std::move(route)).first);
  if (auto connection = take_idle(lease.from_->second)) {
    ++statistics_.reused;
    lease.hold(std::move(connection));
    co_return std::move(lease);
  }
  auto opened = co_await open(std::move(lease));
  co_return std::move(opened);
}

task<result<http_lease>> http_pool::acquire_new(http_route route) {
  http_lease lease(*this, groups_.try_emplace(std::move(route)).first);
  auto opened = co_await open(std::move(lease));
  co_return std::move(opened);
}

task<result<http_lease>> http_pool::open(http_lease lease) {
  const http_route& route = lease.from_->first;
  auto stream = co_await connector_.connect(route);
  if (!stream) {
    ++statistics_.failed;
    co_return failure{std::move(stream).error()};
  }
  ++statistics_.opened;
  auto connection = std::make_unique<http_connection>(std::move(*stream));
  // `https` goes through a tunnel, and never sees the proxy again.
  if (!route.origin.is_secure()) {
    auto proxy = detail::proxy_for(route);
    if (!proxy) co_return failure{proxy.error()};
    if (*proxy) {
      connection->forward_through(std::make_shared<const detail::http_proxy>(std::move(**proxy)),
                                  route.origin);
    }
  }
  lease.hold(std::move(connection));
  co_return std::move(lease);
}

std::unique_ptr<http_connection> http_pool::take_idle(group& from) {
  const steady_time oldest_allowed = timers_.now() - limits_.idle_limit;
  while (!from.idle.empty()) {
    idle_connection newest = std::move(from.idle.back());
    from.idle.pop_back();
    --statistics_.idle;
    if (newest.since <= oldest_allowed) {
      ++statistics_.expired;  // a busy loop has not come to its timers yet
    } else if (newest.connection->stale()) {
      ++statistics_.stale;
    } else {
      return std::move(newest.connection);
    }
  }
  return nullptr;
}

void http_pool::give_back(group& to, std::unique_ptr<http_connection> connection) {
  if (!connection->reusable() || limits_.idle_per_origin == 0) {
    ++statistics_.discarded;
    return;
  }
  if (to.idle.size() == limits_.idle_per_origin) {
    to.idle.pop_front();
    --statistics_.idle;
    ++statistics_.discarded;
  }
  const steady_time now = timers_.now();
  to.idle.push_back({std::move(connection), now});
  ++statistics_.idle;
  if (!timer_.pending()) start_timer(now);
}

void http_pool::leave(groups::iterator from) noexcept {
  --from->second.users;
  if (from->second.users == 0 && from->second.idle.empty()) groups_.erase(from);
}

void http_pool::start_timer(steady_time oldest) {
  timers_.start_timer(timer_, oldest + limits_.idle_limit);
}

void http_pool::expiry_timer::fire(timer_item& item) noexcept {
  static_cast<expiry_timer&>(item).owner_.expire();
}

void http_pool::expire() noexcept {
  const steady_time oldest_allowed = timers_.now() - limits_.idle_limit;
  steady_time oldest = steady_time::max();
  for (auto at = groups_.begin(); at != groups_.end();) {
    group& members = at->second;
    while (!members.idle.empty() && members.idle.front().since <= oldest_allowed) {
      members.idle.pop_front();
      --statistics_.idle;
      ++statistics_.expired;
    }
    if (!members.idle.empty()) oldest = std::min(oldest, members.idle.front().since);
    const bool unused = members.users == 0 && members.idle.empty();
    at = unused ? groups_.erase(at) : std::next(at);
  }
  if (oldest != steady_time::max()) start_timer(oldest);
}

http_lease::http_lease(http_pool& pool, http_pool::groups::iterator from) noexcept
    : pool_(&pool), from_(from) {
  ++from->second.users;
}

http_lease::http_lease(http_lease&& other) noexcept
    : pool_(std::exchange(other.pool_, nullptr)),
      from_(other.from_),
      connection_(std::move(other.connection_)) {}

http_lease& http_lease::operator=(http_lease&& other) noexcept {
  if (this != &other) {
    release();
    pool_ = std::exchange(other.pool_, nullptr);
    from_ = other.from_;
    connection_ = std::move(other.connection_);
  }
  return *this;
}

http_lease::~http_lease() { release(); }

void http_lease::hold(std::unique_ptr<http_connection> connection) noexcept {
  connection_ = std::move(connection);
  ++pool_->statistics_.leased;
}

std::unique_ptr<http_connection> http_lease::let_go() noexcept {
  if (connection_ != nullptr) --pool_->statistics_.leased;
  return std::move(connection_);
}

void http_lease::release() noexcept {
  if (pool_ == nullptr) return;
  if (auto connection = let_go()) pool_->give_back(from_->second, std::move(connection));
  pool_->leave(from_);
  pool_ = nullptr;
}

void http_lease::discard() noexcept {
  if (auto connection = let_go()) ++pool_->statistics_.discarded;
  release();
}

void http_lease::discard_and_avoid() noexcept {
  if (connection_ != nullptr) pool_->connector_.avoid(connection_->peer());
  discard();
}

}  // namespace headrace
