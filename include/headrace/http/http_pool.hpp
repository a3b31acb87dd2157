#pragma once

#include <headrace/base/clock.hpp>
#include <headrace/base/export.hpp>
#include <headrace/base/result.hpp>
#include <headrace/coro/task.hpp>
#include <headrace/coro/timer_service.hpp>
#include <headrace/http/http_connection.hpp>
#include <headrace/http/http_connector.hpp>
#include <headrace/http/http_route.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>

namespace headrace {

class http_lease;

/// The keep-alive connections of one loop, by origin and by the way to it.
///
/// Threads: the loop's own. Idle connections go with the pool; leases must not outlive it, and no
/// `acquire` may be under way when it is destroyed.
///
///     resolver names(loop);
///     tcp_connector connector(loop, names);
///     http_pool pool(loop, connector);
///
///     auto lease = co_await pool.acquire({origin, network});
///     if (!lease) co_return failure{lease.error()};
///     auto head = co_await (*lease)->send(std::move(request));
class HEADRACE_API http_pool {
 public:
  struct options {
    std::chrono::nanoseconds idle_limit = std::chrono::seconds(4);  ///< S3 closes at about 5.
    std::size_t idle_per_origin = 64;
  };

  struct statistics {
    std::uint64_t opened = 0;     ///< Connections made.
    std::uint64_t reused = 0;     ///< Leases of a connection that had been idle.
    std::uint64_t failed = 0;     ///< Attempts that gave no connection.
    std::uint64_t stale = 0;      ///< Idle connections that the peer had closed or spoken on.
    std::uint64_t expired = 0;    ///< Idle connections closed at the limit.
    std::uint64_t discarded = 0;  ///< Connections not fit to be kept after their lease.
    std::size_t idle = 0;         ///< Idle now.
    std::size_t leased = 0;       ///< In use now.
  };

  /// `timers` (a loop) and `connector` must outlive it.
  http_pool(timer_service& timers, http_connector& connector, options limits);
  http_pool(timer_service& timers, http_connector& connector)
      : http_pool(timers, connector, options{}) {}
  ~http_pool();
  http_pool(const http_pool&) = delete;
  http_pool& operator=(const http_pool&) = delete;

  /// A connection by `route`, for the caller alone: the one that has been idle for the shortest
  /// time and is not stale, otherwise a new one. Errors: the connector's.
  [[nodiscard]] task<result<http_lease>> acquire(http_route route);

  /// Always a new connection: for the retry after one that was reused had died.
  [[nodiscard]] task<result<http_lease>> acquire_new(http_route route);

  [[nodiscard]] const statistics& stats() const noexcept { return statistics_; }

 private:
  friend http_lease;

  struct idle_connection {
    std::unique_ptr<http_connection> connection;
    steady_time since;
  };
  struct group {
    std::deque<idle_connection> idle;  ///< Longest idle first.
    std::size_t users = 0;             ///< Leases and attempts to connect that refer to this group.
  };
  using groups = std::map<http_route, group>;

  class expiry_timer final : public timer_item {
   public:
    explicit expiry_timer(http_pool& owner) noexcept : timer_item(&fire), owner_(owner) {}

   private:
    static void fire(timer_item& item) noexcept;
    http_pool& owner_;
  };

  [[nodiscard]] std::unique_ptr<http_connection> take_idle(group& from);
  [[nodiscard]] task<result<http_lease>> open(http_lease lease);
  void give_back(group& to, std::unique_ptr<http_connection> connection);
  void leave(groups::iterator from) noexcept;
  void expire() noexcept;
  void start_timer(steady_time oldest);

  timer_service& timers_;
  http_connector& connector_;
  const options limits_;
  groups groups_;
  expiry_timer timer_{*this};
  statistics statistics_;
};

/// A connection on loan. Gives it back to the pool when destroyed, if it is reusable then;
/// otherwise closes it.
///
/// Threads: the loop's own. Must not outlive the pool.
class HEADRACE_API http_lease {
 public:
  http_lease() noexcept = default;
  http_lease(http_lease&& other) noexcept;
  http_lease& operator=(http_lease&& other) noexcept;
  ~http_lease();

  [[nodiscard]] http_connection& operator*() const noexcept { return *connection_; }
  [[nodiscard]] http_connection* operator->() const noexcept { return connection_.get(); }

  /// Closes the connection now. The lease is empty then.
  void discard() noexcept;

  /// Closes the connection now, and other addresses of the name come first for a while: for one
  /// that stalls.
  void discard_and_avoid() noexcept;

  /// Whether there is a connection in it; otherwise only assigning and destroying it is allowed.
  explicit operator bool() const noexcept { return connection_ != nullptr; }

 private:
  friend http_pool;
  http_lease(http_pool& pool, http_pool::groups::iterator from) noexcept;
  void hold(std::unique_ptr<http_connection> connection) noexcept;
  [[nodiscard]] std::unique_ptr<http_connection> let_go() noexcept;
  void release() noexcept;

  http_pool* pool_ = nullptr;
  http_pool::groups::iterator from_;
  std::unique_ptr<http_connection> connection_;
};

}  // namespace headrace
