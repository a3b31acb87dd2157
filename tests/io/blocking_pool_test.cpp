#include <headrace/io/blocking_pool.hpp>

#include <headrace/coro/async_scope.hpp>
#include <headrace/coro/sync_wait.hpp>
#include <headrace/coro/when.hpp>

#include <doctest/doctest.h>
#include <pthread.h>
#include <support/loop_thread.hpp>

#include <atomic>
#include <csignal>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

using namespace headrace;

namespace {

struct counting_item final : work_item {
  explicit counting_item(std::atomic<int>* given) noexcept : work_item(&run_it), count(given) {}
  static void run_it(work_item& item) noexcept {
    const std::unique_ptr<counting_item> self(static_cast<counting_item*>(&item));
    ++*self->count;
  }
  std::atomic<int>* count;
};

task<std::thread::id> thread_of(blocking_pool* pool) {
  auto call = pool->run([] { return std::this_thread::get_id(); });
  const auto where = co_await call;
  co_return where;
}

task<bool> comes_back(blocking_pool* pool) {
  const auto home = std::this_thread::get_id();
  const auto away = co_await thread_of(pool);
  co_return away != home&& std::this_thread::get_id() == home;
}

task<std::unique_ptr<int>> owned(blocking_pool* pool, std::unique_ptr<int> given) {
  auto call = pool->run([kept = std::move(given)]() mutable { return std::move(kept); });
  auto value = co_await call;
  co_return value;
}

task<int> fails(blocking_pool* pool) {
  auto call = pool->run([]() -> int { throw std::runtime_error("helper failed"); });
  const int value = co_await call;
  co_return value;
}

task<bool> blocks_signals(blocking_pool* pool) {
  auto call = pool->run([] {
    sigset_t blocked;
    return pthread_sigmask(SIG_SETMASK, nullptr, &blocked) == 0 &&
           sigismember(&blocked, SIGINT) == 1 && sigismember(&blocked, SIGUSR1) == 1 &&
           sigismember(&blocked, SIGCHLD) == 1;
  });
  const bool all = co_await call;
  co_return all;
}

task<int> many(blocking_pool* pool, int count) {
  std::vector<task<bool>> works;
  works.reserve(static_cast<std::size_t>(count));
  for (int at = 0; at < count; ++at) works.push_back(comes_back(pool));
  const auto all = co_await when_all(std::move(works));
  int back = 0;
  for (const bool each : all) back += each ? 1 : 0;
  co_return back;
}

}  // namespace

TEST_SUITE("unit") {
  TEST_CASE("a call runs on a helper and comes back to where it was awaited") {
    blocking_pool pool(2);
    CHECK(sync_wait(comes_back(&pool)));
    test::loop_thread loop;
    CHECK(loop.run(comes_back(&pool)));
    CHECK(loop.run(many(&pool, 200)) == 200);
  }

  TEST_CASE("a call gives values that only move, and throws what it threw") {
    blocking_pool pool(1);
    CHECK(*sync_wait(owned(&pool, std::make_unique<int>(3))) == 3);
    CHECK_THROWS_WITH_AS(sync_wait(fails(&pool)), "helper failed", std::runtime_error);
  }

  TEST_CASE("helpers block all signals, and the caller's mask is left alone") {
    sigset_t before;
    REQUIRE(pthread_sigmask(SIG_SETMASK, nullptr, &before) == 0);
    blocking_pool pool(1);
    CHECK(sync_wait(blocks_signals(&pool)));
    sigset_t after;
    REQUIRE(pthread_sigmask(SIG_SETMASK, nullptr, &after) == 0);
    CHECK(sigismember(&before, SIGINT) == sigismember(&after, SIGINT));
  }

  TEST_CASE("a pool runs what was submitted before it ends") {
    for (const unsigned threads : {0u, 1u, 3u}) {
      std::atomic<int> ran{0};
      {
        blocking_pool pool(threads);
        for (int at = 0; at < 500; ++at) pool.submit(*new counting_item(&ran));
      }
      CHECK(ran == 500);
    }
  }

  TEST_CASE("a pool that was never used starts no thread") { const blocking_pool pool(8); }

  TEST_CASE("many threads submit to one pool and nothing is lost") {
    std::atomic<int> ran{0};
    {
      blocking_pool pool(3);
      std::vector<std::thread> submitters;
      for (int at = 0; at < 4; ++at) {
        submitters.emplace_back([&] {
          for (int each = 0; each < 1000; ++each) pool.submit(*new counting_item(&ran));
        });
      }
      for (auto& submitter : submitters) submitter.join();
    }
    CHECK(ran == 4000);
  }
}
