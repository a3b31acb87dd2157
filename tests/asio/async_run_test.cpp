#include "serving.hpp"

#include <headrace/coro/when.hpp>

#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/use_future.hpp>

#include <atomic>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace headrace {
namespace {

namespace net = boost::asio;
using namespace std::chrono_literals;
using test::model_on_disk;

task<int> give(int value) { co_return value; }

task<int> throw_a_stranger() {
  throw std::runtime_error("a stranger's");
  co_return 0;
}

task<std::thread::id> here() { co_return std::this_thread::get_id(); }

task<void> sleep_again_and_again(int rounds, std::atomic<int>* inside, std::atomic<int>* wrong) {
  for (int round = 0; round < rounds; ++round) {
    if (inside->fetch_add(1) != 0) ++*wrong;
    inside->fetch_sub(1);
    co_await sleep_for(std::chrono::microseconds(50));
  }
}

/// Many tasks on one operation's executor: their steps must never overlap.
task<void> sleep_in_parallel(int tasks, int rounds, std::atomic<int>* inside,
                             std::atomic<int>* wrong) {
  std::vector<task<void>> all;
  for (int number = 0; number < tasks; ++number)
    all.push_back(sleep_again_and_again(rounds, inside, wrong));
  co_await when_all(std::move(all));
}

task<void> sleep_long() { co_await sleep_for(1h); }

task<void> sleep_with_limit() { co_await with_timeout(2ms, sleep_long()); }

task<std::vector<std::byte>> read(runtime* engine, std::string uri) {
  const model opened = co_await open(*engine, std::move(uri));
  auto bytes = co_await opened.read_file("config.json");
  co_return bytes;
}

net::awaitable<void> await_int(int* into) {
  *into = co_await asio::async_run(co_await net::this_coro::executor, give(7), net::use_awaitable);
}

TEST_SUITE("unit") {
  TEST_CASE("a task gives its value to a callback, an awaitable and a future") {
    net::io_context context;
    int called = 0;
    int awaited = 0;
    asio::async_run(context.get_executor(), give(5),
                    [&](std::exception_ptr failed, int value) { called = failed ? -1 : value; });
    net::co_spawn(context, await_int(&awaited), net::detached);
    CHECK(test::run_to_end(context));
    CHECK(called == 5);
    CHECK(awaited == 7);
    net::thread_pool pool(1);
    CHECK(asio::async_run(pool.get_executor(), give(6), net::use_future).get() == 6);
  }

  TEST_CASE("a task runs on the executor that was named, or on the handler's own") {
    net::io_context context;
    net::thread_pool pool(1);
    std::thread::id first;
    std::thread::id second;
    asio::async_run(context.get_executor(), here(),
                    [&](std::exception_ptr, std::thread::id where) { first = where; });
    asio::async_run(pool.get_executor(), here(),
                    net::bind_executor(context, [&](std::exception_ptr, std::thread::id where) {
                      second = where;
                    }));
    CHECK(first == std::thread::id());
    CHECK(test::run_to_end(context));
    CHECK(first == std::this_thread::get_id());
    CHECK(second == std::this_thread::get_id());
    CHECK(asio::async_run(pool.get_executor(), here(), net::use_future).get() !=
          std::this_thread::get_id());
  }

  TEST_CASE("an exception of any type arrives as it was thrown, and reads as an error") {
    net::io_context context;
    std::exception_ptr failure;
    asio::async_run(context.get_executor(), throw_a_stranger(),
                    [&](std::exception_ptr failed, int) { failure = failed; });
    CHECK(test::run_to_end(context));
    REQUIRE(failure);
    CHECK_THROWS_WITH_AS(std::rethrow_exception(failure), "a stranger's", std::runtime_error);
    CHECK(asio::error_of(failure).kind() == errc::internal);
    CHECK(asio::error_of(failure).message() == "a stranger's");
  }

  TEST_CASE("timers and limits work on an executor of Asio's, one step at a time on four threads") {
    net::io_context context;
    std::atomic<int> inside{0};
    std::atomic<int> wrong{0};
    bool finished = false;
    asio::async_run(context.get_executor(), sleep_in_parallel(20, 30, &inside, &wrong),
                    [&](std::exception_ptr failed) { finished = !failed; });
    CHECK(test::run_to_end(context, 4));
    CHECK(finished);
    CHECK(wrong == 0);
    context.restart();
    errc kind{};
    asio::async_run(context.get_executor(), sleep_with_limit(),
                    [&](std::exception_ptr failed) { kind = test::kind_of(failed); });
    CHECK(test::run_to_end(context, 2));
    CHECK(kind == errc::timeout);
  }

  TEST_CASE("cancellation stops a task before it begins and while it waits") {
    for (const bool begun : {false, true}) {
      net::io_context context;
      net::cancellation_signal signal;
      errc kind{};
      asio::async_run(context.get_executor(), sleep_long(),
                      net::bind_cancellation_slot(signal.slot(), [&](std::exception_ptr failed) {
                        kind = test::kind_of(failed);
                      }));
      if (begun) context.poll();
      signal.emit(net::cancellation_type::total);
      CHECK(test::run_to_end(context));
      CHECK(kind == errc::cancelled);
    }
  }

  TEST_CASE("a task that waits when its context goes is stopped and destroyed") {
    struct noting {
      explicit noting(bool* given) noexcept : flag(given) {}
      noting(noting&& other) noexcept : flag(std::exchange(other.flag, nullptr)) {}
      ~noting() {
        if (flag != nullptr) *flag = true;
      }
      bool* flag;
    };
    struct holding {
      static task<void> run(noting held) {
        co_await sleep_for(1h);
        static_cast<void>(held);
      }
    };
    for (const bool begun : {false, true}) {
      bool destroyed = false;
      bool called = false;
      {
        net::io_context context;
        asio::async_run(context.get_executor(), holding::run(noting(&destroyed)),
                        [&](std::exception_ptr) { called = true; });
        if (begun) context.poll();
      }
      CHECK(destroyed);
      CHECK(!called);
    }
  }

  TEST_CASE("any task of headrace's can be awaited: a small file of a model") {
    const model_on_disk stored;
    stored.place.write("config.json", "{}");
    runtime engine({.threads = 1});
    net::io_context context;
    auto strand = net::make_strand(context);
    std::size_t size = 0;
    asio::async_run(strand, read(&engine, stored.uri()),
                    [&](std::exception_ptr failed, std::vector<std::byte> bytes) {
                      CHECK(!failed);
                      size = bytes.size();
                    });
    CHECK(test::run_to_end(context, 2));
    CHECK(size == 2);
  }
}

}  // namespace
}  // namespace headrace
