#include "streaming.hpp"

#include <headrace/coro/executor.hpp>
#include <headrace/coro/with.hpp>
#include <headrace/stream/model.hpp>
#include <headrace/stream/runtime.hpp>

#include <doctest/doctest.h>

#include <atomic>
#include <condition_variable>
#include <coroutine>
#include <cstddef>
#include <exception>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

// What a program does that has an executor and coroutines of its own.

namespace headrace {
namespace {

using test::failure_of;
using test::small_model;
using test::temporary_directory;

/// An executor as a user writes it: a queue and a thread.
class users_executor final : public executor {
 public:
  users_executor() : thread_([this] { serve(); }) {}
  users_executor(const users_executor&) = delete;
  users_executor& operator=(const users_executor&) = delete;
  ~users_executor() {
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
      ready_.notify_one();
    }
    thread_.join();
  }

  void post(work_item& item) noexcept override {
    const std::lock_guard lock(mutex_);
    items_.push(item);
    ready_.notify_one();
  }

  [[nodiscard]] std::thread::id id() const noexcept { return thread_.get_id(); }

 private:
  void serve() {
    std::unique_lock lock(mutex_);
    for (;;) {
      while (work_item* const item = items_.pop()) {
        lock.unlock();
        item->run(*item);
        lock.lock();
      }
      if (ended_) return;
      ready_.wait(lock);
    }
  }

  std::mutex mutex_;
  std::condition_variable ready_;
  work_queue items_;
  bool ended_ = false;
  std::thread thread_;
};

/// A coroutine type of somebody else's: eager, and knows nothing of environments.
struct users_coroutine {
  struct promise_type {
    users_coroutine get_return_object() noexcept { return {}; }
    std::suspend_never initial_suspend() noexcept { return {}; }
    std::suspend_never final_suspend() noexcept { return {}; }
    void return_void() noexcept {}
    void unhandled_exception() noexcept { std::terminate(); }
  };
};

/// One that does: tasks inherit its environment.
struct knowing_coroutine {
  struct promise_type {
    promise_type(users_executor* home, auto&...) noexcept : given{.executor = home} {}
    knowing_coroutine get_return_object() noexcept { return {}; }
    std::suspend_never initial_suspend() noexcept { return {}; }
    std::suspend_never final_suspend() noexcept { return {}; }
    void return_void() noexcept {}
    void unhandled_exception() noexcept { std::terminate(); }
    [[nodiscard]] const headrace::environment& environment() const noexcept { return given; }
    headrace::environment given;
  };
};

/// What a coroutine saw, and on which threads it was resumed.
struct report {
  std::vector<std::thread::id> threads;
  std::size_t tensors = 0;
  int wrong = 0;
  std::optional<errc> failure;
  std::atomic<bool> finished{false};

  void here() { threads.push_back(std::this_thread::get_id()); }
  void wait() const {
    while (!finished.load()) std::this_thread::yield();
  }
  [[nodiscard]] bool always_on(std::thread::id wanted) const {
    for (const auto& one : threads) {
      if (one != wanted) return false;
    }
    return !threads.empty();
  }
};

users_coroutine stream_by_hand(users_executor* home, runtime* engine, std::string uri,
                               const test::checkpoint* expected, report* seen) {
  try {
    const model opened = co_await via(*home, open(*engine, std::move(uri)));
    seen->here();
    auto tensors = opened.stream();
    for (;;) {
      auto* const one = co_await via(*home, tensors.next());
      seen->here();
      if (one == nullptr) break;
      ++seen->tensors;
      if (!test::is(*one, *expected->find(one->name()))) ++seen->wrong;
    }
    co_await via(*home, tensors.close());
    seen->here();
  } catch (const error& failed) {
    seen->here();
    seen->failure = failed.kind();
  }
  seen->finished = true;
}

knowing_coroutine stream_as_one_of_ours(users_executor*, runtime* engine, std::string uri,
                                        const test::checkpoint* expected, report* seen) {
  try {
    const model opened = co_await open(*engine, std::move(uri));
    seen->here();
    auto tensors = opened.stream();
    while (auto* one = co_await tensors.next()) {
      seen->here();
      ++seen->tensors;
      if (!test::is(*one, *expected->find(one->name()))) ++seen->wrong;
    }
    co_await tensors.close();
    seen->here();
  } catch (const error& failed) {
    seen->here();
    seen->failure = failed.kind();
  }
  seen->finished = true;
}

task<std::size_t> count_there(model from, std::thread::id* where) {
  auto tensors = from.stream();
  std::size_t count = 0;
  while (co_await tensors.next() != nullptr) ++count;
  co_await tensors.close();
  *where = std::this_thread::get_id();
  co_return count;
}

task<std::size_t> count_on(users_executor* other, model from, std::thread::id* there,
                           std::thread::id* home) {
  const std::size_t count = co_await on(*other, count_there(std::move(from), there));
  *home = std::this_thread::get_id();
  co_return count;
}

TEST_SUITE("unit") {
  TEST_CASE("a coroutine of the user's own streams by via, and is resumed on its own executor") {
    const temporary_directory place;
    const auto expected = small_model();
    place.write(expected);
    runtime engine({.threads = 2});
    users_executor home;
    report seen;
    stream_by_hand(&home, &engine, place.path(), &expected, &seen);
    seen.wait();
    CHECK(seen.always_on(home.id()));
    CHECK(seen.tensors == expected.tensors());
    CHECK(seen.wrong == 0);
    CHECK(!seen.failure);
  }

  TEST_CASE("an error reaches a coroutine of the user's own on its own executor") {
    runtime engine({.threads = 1});
    users_executor home;
    report seen;
    stream_by_hand(&home, &engine, "/nowhere/at/all", nullptr, &seen);
    seen.wait();
    CHECK(seen.always_on(home.id()));
    CHECK(seen.failure == errc::not_found);
  }

  TEST_CASE("a promise with an environment is resumed on its executor without via") {
    const temporary_directory place;
    const auto expected = small_model();
    place.write(expected);
    runtime engine({.threads = 2});
    users_executor home;
    report seen;
    stream_as_one_of_ours(&home, &engine, place.path(), &expected, &seen);
    seen.wait();
    // A value that is ready needs no executor: it is there on the thread that asks.
    CHECK(seen.threads.front() == home.id());
    CHECK(seen.threads.back() == home.id());
    CHECK(seen.tensors == expected.tensors());
    CHECK(seen.wrong == 0);
  }

  TEST_CASE("a plain thread waits for a task that runs on an executor of the user's own") {
    const temporary_directory place;
    const auto expected = small_model();
    place.write(expected);
    runtime engine({.threads = 1});
    users_executor other;
    const model opened = test::run(open(engine, place.path()));
    std::thread::id there;
    std::thread::id home;
    CHECK(sync_wait(count_on(&other, opened, &there, &home)) == expected.tensors());
    CHECK(there == other.id());
    CHECK(home == std::this_thread::get_id());
  }

  TEST_CASE("plain threads wait for tasks of one runtime side by side") {
    const temporary_directory place;
    const auto expected = small_model();
    place.write(expected);
    runtime engine({.threads = 2});
    std::atomic<int> right{0};
    {
      std::vector<std::jthread> threads;
      for (int number = 0; number < 4; ++number) {
        threads.emplace_back([&] {
          const model opened = sync_wait(open(engine, place.path()));
          if (test::stream_all(opened, expected).right) ++right;
        });
      }
    }
    CHECK(right == 4);
  }
}

}  // namespace
}  // namespace headrace
