#include "serving.hpp"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/experimental/channel.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <support/loop_thread.hpp>

#include <atomic>
#include <chrono>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

namespace headrace {
namespace {

namespace net = boost::asio;
using namespace std::chrono_literals;
using tcp = net::ip::tcp;

task<void> wait_in_place(net::steady_timer* timer, std::thread::id* resumed) {
  co_await timer->async_wait(asio::use_headrace);
  *resumed = std::this_thread::get_id();
}

task<void> wait_with_a_timer_of_its_own(net::io_context* context, errc* kind) {
  net::steady_timer timer(*context, 1h);
  try {
    co_await timer.async_wait(asio::use_headrace);
  } catch (const error& failed) {
    *kind = failed.kind();
  }
}

task<std::thread::id> wait_elsewhere(net::steady_timer* timer) {
  co_await timer->async_wait(asio::use_headrace_on(timer->get_executor()));
  co_return std::this_thread::get_id();
}

task<boost::system::error_code> wait_as_tuple(net::steady_timer* timer) {
  auto token = net::as_tuple(asio::use_headrace_on(timer->get_executor()));
  auto outcome = co_await timer->async_wait(std::move(token));
  co_return std::get<0>(outcome);
}

task<std::string> echo_once(net::io_context* context, tcp::endpoint to) {
  const auto on_context = asio::use_headrace_on(context->get_executor());
  tcp::socket socket(*context);
  co_await socket.async_connect(to, on_context);
  const std::string said = "hello";
  const std::size_t written = co_await net::async_write(socket, net::buffer(said), on_context);
  std::string heard(written, '\0');
  const std::size_t read = co_await net::async_read(socket, net::buffer(heard), on_context);
  heard.resize(read);
  co_return heard;
}

task<std::string> read_until_stopped(net::io_context* context, tcp::endpoint to) {
  const auto on_context = asio::use_headrace_on(context->get_executor());
  tcp::socket socket(*context);
  co_await socket.async_connect(to, on_context);
  std::string heard(1, '\0');
  co_await net::async_read(socket, net::buffer(heard), on_context);
  co_return heard;
}

net::awaitable<int> give_or_throw(int value) {
  if (value < 0) throw std::runtime_error("below zero");
  co_return value;
}

net::awaitable<void> wait_in_asio(std::chrono::milliseconds duration) {
  net::steady_timer timer(co_await net::this_coro::executor, duration);
  co_await timer.async_wait(net::use_awaitable);
}

task<int> await_coroutine(net::io_context* context, int value) {
  const int given = co_await net::co_spawn(*context, give_or_throw(value),
                                           asio::use_headrace_on(context->get_executor()));
  co_return given;
}

task<void> await_waiting_coroutine(net::io_context* context) {
  co_await net::co_spawn(*context, wait_in_asio(std::chrono::milliseconds(3'600'000)),
                         asio::use_headrace_on(context->get_executor()));
}

task<void> wait_with_limit(net::steady_timer* timer) {
  co_await with_timeout(2ms, [](net::steady_timer* waited) -> task<void> {
    co_await waited->async_wait(asio::use_headrace_on(waited->get_executor()));
  }(timer));
}

task<void> wait_in_place_with_limit(net::steady_timer* timer, std::thread::id* unused) {
  co_await with_timeout(2ms, wait_in_place(timer, unused));
}

/// A context that runs on a thread of its own for as long as this lives.
struct running_context {
  net::io_context context;
  net::executor_work_guard<net::io_context::executor_type> work = net::make_work_guard(context);
  std::thread thread{[this] { context.run(); }};

  running_context() = default;
  running_context(const running_context&) = delete;
  running_context& operator=(const running_context&) = delete;
  ~running_context() {
    work.reset();
    thread.join();
  }
};

template <class Work>
std::optional<error> failure_of(Work&& work) {
  try {
    std::forward<Work>(work)();
  } catch (const error& failed) {
    return failed;
  }
  return std::nullopt;
}

TEST_SUITE("unit") {
  TEST_CASE("a task on a context awaits the context's own operations in place") {
    net::io_context context;
    net::steady_timer timer(context, 1ms);
    std::thread::id resumed;
    asio::async_run(context.get_executor(), wait_in_place(&timer, &resumed),
                    [](std::exception_ptr failed) { CHECK(!failed); });
    CHECK(test::run_to_end(context));
    CHECK(resumed == std::this_thread::get_id());
  }

  TEST_CASE("a task that runs elsewhere awaits an operation and resumes at home") {
    running_context there;
    net::steady_timer timer(there.context, 1ms);
    CHECK(sync_wait(wait_elsewhere(&timer)) == std::this_thread::get_id());
    test::loop_thread loop;
    timer.expires_after(1ms);
    CHECK(loop.run(wait_elsewhere(&timer)) == loop.id());
  }

  TEST_CASE("what an operation completes with is given: values, tuples, exceptions") {
    running_context there;
    tcp::acceptor acceptor(there.context, tcp::endpoint(net::ip::address_v4::loopback(), 0));
    std::jthread far([&acceptor] {
      tcp::socket peer = acceptor.accept();
      std::string heard(5, '\0');
      net::read(peer, net::buffer(heard));
      net::write(peer, net::buffer(heard));
    });
    CHECK(sync_wait(echo_once(&there.context, acceptor.local_endpoint())) == "hello");
    net::steady_timer timer(there.context, 1ms);
    CHECK(!sync_wait(wait_as_tuple(&timer)));
    CHECK(sync_wait(await_coroutine(&there.context, 7)) == 7);
    CHECK_THROWS_WITH_AS(sync_wait(await_coroutine(&there.context, -1)), "below zero",
                         std::runtime_error);
  }

  TEST_CASE("an error code of Asio's is thrown as Asio throws it") {
    running_context there;
    std::optional<tcp::acceptor> acceptor(std::in_place, there.context,
                                          tcp::endpoint(net::ip::address_v4::loopback(), 0));
    const auto nobody = acceptor->local_endpoint();
    acceptor.reset();
    try {
      static_cast<void>(sync_wait(echo_once(&there.context, nobody)));
      FAIL("connected to nobody");
    } catch (const boost::system::system_error& failed) {
      CHECK(failed.code() == net::error::connection_refused);
    }
  }

  TEST_CASE("a stop cancels the operation and is thrown as cancelled") {
    running_context there;
    tcp::acceptor acceptor(there.context, tcp::endpoint(net::ip::address_v4::loopback(), 0));
    std::stop_source source;
    std::optional<tcp::socket> peer;  // stays open, so that nothing but the stop ends the read
    std::jthread far([&] {
      peer = acceptor.accept();
      source.request_stop();
    });
    const auto reading = failure_of([&] {
      static_cast<void>(sync_wait(read_until_stopped(&there.context, acceptor.local_endpoint()),
                                  source.get_token()));
    });
    REQUIRE(reading);
    CHECK(reading->kind() == errc::cancelled);
    // Stopped before it begins.
    net::steady_timer timer(there.context, 1h);
    const auto waiting = failure_of(
        [&] { static_cast<void>(sync_wait(wait_elsewhere(&timer), source.get_token())); });
    REQUIRE(waiting);
    CHECK(waiting->kind() == errc::cancelled);
  }

  TEST_CASE("a stop ends a coroutine of Asio's that is awaited") {
    running_context there;
    const auto failed =
        failure_of([&] { sync_wait(with_timeout(2ms, await_waiting_coroutine(&there.context))); });
    REQUIRE(failed);
    CHECK(failed->kind() == errc::timeout);
  }

  TEST_CASE("a limit around an operation is a timeout, here and elsewhere") {
    running_context there;
    net::steady_timer timer(there.context, 1h);
    const auto elsewhere = failure_of([&] { sync_wait(wait_with_limit(&timer)); });
    REQUIRE(elsewhere);
    CHECK(elsewhere->kind() == errc::timeout);

    net::io_context context;
    net::steady_timer other(context, 1h);
    std::thread::id unused;
    errc kind{};
    asio::async_run(context.get_executor(), wait_in_place_with_limit(&other, &unused),
                    [&](std::exception_ptr failed) { kind = test::kind_of(failed); });
    CHECK(test::run_to_end(context));
    CHECK(kind == errc::timeout);
  }

  TEST_CASE("as_tuple gives the error code of a stopped operation") {
    running_context there;
    net::steady_timer timer(there.context, 1h);
    std::stop_source source;
    std::jthread stopper([&source] { source.request_stop(); });
    boost::system::error_code given;
    const auto failed =
        failure_of([&] { given = sync_wait(wait_as_tuple(&timer), source.get_token()); });
    // Where the stop came first, nothing has begun.
    CHECK((failed ? failed->kind() == errc::cancelled : given == net::error::operation_aborted));
  }

  TEST_CASE("a stop that races with the completion gives one outcome, again and again") {
    running_context there;
    auto strand = net::make_strand(there.context);
    int cancelled = 0;
    int finished = 0;
    for (int round = 0; round < 300; ++round) {
      net::steady_timer timer(there.context, std::chrono::microseconds(50));
      std::stop_source source;
      std::thread stopper([&source, round] {
        const auto until =
            std::chrono::steady_clock::now() + std::chrono::microseconds(round % 150);
        while (std::chrono::steady_clock::now() < until) {
        }
        source.request_stop();
      });
      const auto failed = failure_of(
          [&] { static_cast<void>(sync_wait(wait_elsewhere(&timer), source.get_token())); });
      stopper.join();
      if (failed) CHECK(failed->kind() == errc::cancelled);
      ++(failed ? cancelled : finished);
    }
    CHECK(cancelled + finished == 300);
  }

  TEST_CASE("a task that waits in place goes with the context that it runs on") {
    for (const bool begun : {false, true}) {
      errc kind{};
      bool called = false;
      {
        net::io_context context;
        asio::async_run(context.get_executor(), wait_with_a_timer_of_its_own(&context, &kind),
                        [&called](std::exception_ptr) { called = true; });
        if (begun) context.poll();
      }
      CHECK(kind == errc::cancelled);
      CHECK(!called);
    }
  }

  TEST_CASE("an operation that is dropped with its context is cancelled, not waited for") {
    auto context = std::make_unique<net::io_context>();
    auto timer = std::make_unique<net::steady_timer>(*context, 1h);
    std::atomic<bool> waiting{false};
    std::optional<error> failed;
    std::thread waiter([&] {
      failed = failure_of([&] {
        struct noting {
          static task<void> run(net::steady_timer* waited, std::atomic<bool>* flag) {
            auto operation = waited->async_wait(asio::use_headrace_on(waited->get_executor()));
            *flag = true;
            co_await operation;
          }
        };
        sync_wait(noting::run(timer.get(), &waiting));
      });
    });
    CHECK(test::eventually([&] { return waiting.load(); }));
    // Runs what was dispatched, and no more.
    CHECK(test::eventually([&] {
      context->restart();
      return context->poll_one() == 1;
    }));
    // What it completes with is on its way when the context goes.
    timer.reset();
    context.reset();
    waiter.join();
    REQUIRE(failed);
    CHECK(failed->kind() == errc::cancelled);
    CHECK(failed->message().find("context") != std::string::npos);
  }
}

}  // namespace
}  // namespace headrace
