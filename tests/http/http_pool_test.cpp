#include <headrace/http/http_pool.hpp>

#include <headrace/coro/sync_wait.hpp>

#include <doctest/doctest.h>
#include <support/scripted_stream.hpp>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace headrace {
namespace {

using test::scripted_stream;
using test::stream_script;

/// Time that passes when the test says so.
class manual_timers final : public timer_service {
 public:
  void start_timer(timer_item& item, steady_time deadline) override {
    queue_.start(item, deadline);
  }
  void cancel_timer(timer_item& item) noexcept override { queue_.cancel(item); }
  [[nodiscard]] steady_time now() const noexcept override { return now_; }

  void pass(std::chrono::nanoseconds duration, bool run = true) {
    now_ += duration;
    if (run) queue_.run_due(now_);
  }
  [[nodiscard]] bool pending() const noexcept { return queue_.next().has_value(); }

 private:
  timer_queue queue_;
  steady_time now_{std::chrono::hours(1)};
};

class scripted_connector final : public http_connector {
 public:
  task<result<std::unique_ptr<byte_stream>>> connect(http_route route) override {
    origins.push_back(route.origin);
    if (failing) co_return failure{error(errc::connect_error, "refused")};
    scripts.push_back(std::make_shared<stream_script>());
    co_return std::make_unique<scripted_stream>(scripts.back());
  }
  void avoid(std::string_view peer) override { avoided.emplace_back(peer); }

  bool failing = false;
  std::vector<http_origin> origins;
  std::vector<std::shared_ptr<stream_script>> scripts;
  std::vector<std::string> avoided;
};

struct pool_fixture {
  manual_timers time;
  scripted_connector connector;
  http_pool pool{time, connector};
  http_origin origin{"http", "example.com", 80};

  http_lease acquire() { return sync_wait(pool.acquire(origin)).value(); }

  // One exchange on it, so that it has been in use.
  void use(http_lease& lease,
           std::string answer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok") {
    connector.scripts.back()->says(std::move(answer));
    http_request request;
    request.host = origin.host_field();
    auto head = sync_wait(lease->send(std::move(request)));
    REQUIRE(head);
    auto text = sync_wait(lease->read_text(100));
    REQUIRE(text);
  }
};

TEST_SUITE("unit") {
  TEST_CASE("a connection that was given back is used again, the newest first") {
    pool_fixture here;
    http_connection* first = nullptr;
    http_connection* second = nullptr;
    {
      auto one = here.acquire();
      auto two = here.acquire();
      first = &*one;
      second = &*two;
      CHECK(first != second);
      CHECK(one->fresh());
      CHECK(here.pool.stats().leased == 2);
      one = http_lease();
      here.time.pass(std::chrono::milliseconds(1));
    }
    CHECK(here.pool.stats().idle == 2);
    CHECK(here.pool.stats().leased == 0);
    auto again = here.acquire();
    CHECK(&*again == second);
    auto other = here.acquire();
    CHECK(&*other == first);
    CHECK(here.pool.stats().opened == 2);
    CHECK(here.pool.stats().reused == 2);
    CHECK(here.pool.stats().idle == 0);
  }

  TEST_CASE("a connection that has been used says so") {
    pool_fixture here;
    {
      auto lease = here.acquire();
      here.use(lease);
    }
    auto lease = here.acquire();
    CHECK_FALSE(lease->fresh());
    CHECK(here.pool.stats().opened == 1);
  }

  TEST_CASE("connections belong to their origin") {
    pool_fixture here;
    {
      auto lease = here.acquire();
    }
    for (const http_origin& other :
         {http_origin{"https", "example.com", 80}, http_origin{"http", "example.org", 80},
          http_origin{"http", "example.com", 81}}) {
      auto lease = sync_wait(here.pool.acquire(other)).value();
      CHECK(here.connector.origins.back() == other);
    }
    CHECK(here.pool.stats().opened == 4);
    CHECK(here.pool.stats().reused == 0);
  }

  TEST_CASE("a connection whose body was not consumed, or that is to be closed, is not kept") {
    pool_fixture here;
    {
      auto lease = here.acquire();
      here.connector.scripts.back()->says("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
      http_request request;
      request.host = "h";
      REQUIRE(sync_wait(lease->send(request)));
    }
    CHECK(here.connector.scripts.back()->destroyed);
    {
      auto lease = here.acquire();
      here.use(lease, "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok");
    }
    CHECK(here.connector.scripts.back()->destroyed);
    {
      auto lease = here.acquire();
      here.use(lease, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\n");
    }
    CHECK(here.connector.scripts.back()->destroyed);
    {
      auto lease = here.acquire();
      lease.discard();
      CHECK_FALSE(lease);
      CHECK(here.connector.scripts.back()->destroyed);
    }
    CHECK(here.pool.stats().discarded == 4);
    CHECK(here.pool.stats().idle == 0);
    CHECK(here.connector.avoided.empty());
  }

  TEST_CASE("an address that was of no use is remembered") {
    pool_fixture here;
    auto lease = here.acquire();
    lease.discard_and_avoid();
    CHECK(here.connector.avoided == std::vector<std::string>{"192.0.2.7:80"});
    CHECK(here.connector.scripts.back()->destroyed);
    CHECK(here.pool.stats().discarded == 1);
  }

  TEST_CASE("an idle connection on which the peer has closed or spoken is passed over") {
    pool_fixture here;
    {
      auto one = here.acquire();
      auto two = here.acquire();
      auto three = here.acquire();
      three = http_lease();
      two = http_lease();
    }
    here.connector.scripts[0]->stale = true;  // the newest
    here.connector.scripts[1]->stale = true;
    auto lease = here.acquire();
    CHECK(here.pool.stats().stale == 2);
    CHECK(here.pool.stats().reused == 1);
    CHECK(here.connector.scripts[0]->destroyed);
    CHECK(here.connector.scripts[1]->destroyed);
    CHECK_FALSE(here.connector.scripts[2]->destroyed);
  }

  TEST_CASE("idle connections are closed after four seconds") {
    pool_fixture here;
    CHECK_FALSE(here.time.pending());
    {
      auto one = here.acquire();
      auto two = here.acquire();
      two = http_lease();
      here.time.pass(std::chrono::seconds(1));
    }
    CHECK(here.time.pending());
    here.time.pass(std::chrono::milliseconds(2999));
    CHECK(here.pool.stats().idle == 2);
    here.time.pass(std::chrono::milliseconds(1));
    CHECK(here.pool.stats().idle == 1);
    CHECK(here.connector.scripts[1]->destroyed);
    CHECK_FALSE(here.connector.scripts[0]->destroyed);
    CHECK(here.time.pending());
    here.time.pass(std::chrono::seconds(1));
    CHECK(here.connector.scripts[0]->destroyed);
    CHECK(here.pool.stats().idle == 0);
    CHECK(here.pool.stats().expired == 2);
    CHECK_FALSE(here.time.pending());
  }

  TEST_CASE("an idle connection that is too old is not used even where the timer is late") {
    pool_fixture here;
    {
      auto lease = here.acquire();
    }
    here.time.pass(std::chrono::seconds(5), false);
    auto lease = here.acquire();
    CHECK(here.pool.stats().expired == 1);
    CHECK(here.pool.stats().opened == 2);
  }

  TEST_CASE("only so many idle connections are kept, the newest ones") {
    manual_timers time;
    scripted_connector connector;
    http_pool pool(time, connector, {.idle_limit = std::chrono::seconds(4), .idle_per_origin = 2});
    const http_origin origin{"http", "h", 80};
    std::vector<http_lease> leases;
    for (int count = 0; count < 4; ++count)
      leases.push_back(sync_wait(pool.acquire(origin)).value());
    for (auto& lease : leases) lease = http_lease();
    CHECK(pool.stats().idle == 2);
    CHECK(connector.scripts[0]->destroyed);
    CHECK(connector.scripts[1]->destroyed);
    CHECK_FALSE(connector.scripts[2]->destroyed);
    CHECK_FALSE(connector.scripts[3]->destroyed);
  }

  TEST_CASE("a pool with idle connections can be destroyed") {
    manual_timers time;
    scripted_connector connector;
    {
      http_pool pool(time, connector);
      auto lease = sync_wait(pool.acquire({"http", "h", 80})).value();
    }
    CHECK(connector.scripts[0]->destroyed);
    CHECK_FALSE(time.pending());
  }

  TEST_CASE("a connector that fails is heard, and the pool goes on") {
    pool_fixture here;
    here.connector.failing = true;
    auto lease = sync_wait(here.pool.acquire(here.origin));
    REQUIRE_FALSE(lease);
    CHECK(lease.error().kind() == errc::connect_error);
    CHECK(here.pool.stats().failed == 1);
    CHECK(here.pool.stats().leased == 0);
    here.connector.failing = false;
    CHECK(here.acquire());
  }

  TEST_CASE("a new connection can be demanded") {
    pool_fixture here;
    {
      auto lease = here.acquire();
    }
    auto lease = sync_wait(here.pool.acquire_new(here.origin));
    REQUIRE(lease);
    CHECK(here.pool.stats().opened == 2);
    CHECK(here.pool.stats().idle == 1);
  }
}

}  // namespace
}  // namespace headrace
