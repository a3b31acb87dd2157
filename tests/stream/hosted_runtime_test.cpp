#include "streaming.hpp"

#include <headrace/coro/async_scope.hpp>
#include <headrace/coro/sync_wait.hpp>
#include <headrace/stream/model.hpp>
#include <headrace/stream/runtime.hpp>

#include <doctest/doctest.h>
#include <poll.h>
#include <support/scripted_server.hpp>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <thread>

// A child of a process with threads may not start threads under TSan.
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define HEADRACE_NO_FORK 1
#endif
#endif

namespace headrace {
namespace {

using namespace std::chrono_literals;
using test::failure_of;
using test::scripted_server;
using test::seen_request;
using test::small_model;
using test::steps;
using test::temporary_directory;
namespace action = test::action;

/// An event loop of somebody else's: it runs what is posted to it and drives a hosted loop.
class simple_host final : public loop_host, public executor {
 public:
  void attach(hosted_loop& loop) override { loop_ = &loop; }
  void detach() noexcept override { loop_ = nullptr; }
  [[nodiscard]] hosted_loop* loop() const noexcept { return loop_; }

  void post(work_item& item) noexcept override {
    const std::lock_guard lock(mutex_);
    items_.push(item);
  }

  /// Serves both until `finished`; false after a minute. Wakes every millisecond for what other
  /// threads post to it; the hosted loop has to wake it by its descriptor.
  [[nodiscard]] bool serve_until(const std::atomic<bool>& finished) {
    const auto limit = std::chrono::steady_clock::now() + 60s;
    std::optional<steady_time> next = steady_time::min();
    while (!finished && std::chrono::steady_clock::now() < limit) {
      for (work_item* item = take(); item != nullptr; item = take()) item->run(*item);
      if (loop_ == nullptr) continue;
      pollfd watched{.fd = loop_->descriptor(), .events = POLLIN, .revents = 0};
      const bool due = next && *next <= std::chrono::steady_clock::now();
      if (::poll(&watched, 1, due ? 0 : 1) > 0 || due) next = loop_->poll();
    }
    return finished;
  }

  /// Runs `work` with itself as the executor.
  template <class T>
  T run(task<T> work, std::stop_token stop = {}) {
    async_scope scope(std::move(stop));
    detail::outcome<T> settled;
    std::atomic<bool> finished{false};
    scope.spawn(*this, keep(std::move(work), &settled, &finished));
    CHECK(serve_until(finished));
    return settled.take();
  }

 private:
  template <class T>
  static task<void> keep(task<T> work, detail::outcome<T>* settled, std::atomic<bool>* finished) {
    environment given = co_await current_environment();
    *settled = co_await detail::settle(std::move(work), std::move(given));
    *finished = true;
  }

  work_item* take() {
    const std::lock_guard lock(mutex_);
    return items_.pop();
  }

  hosted_loop* loop_ = nullptr;
  std::mutex mutex_;
  work_queue items_;
};

/// Whether the process has a thread of this name.
bool has_thread(std::string_view name) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream file(entry.path() / "comm");
    std::string found;
    if (std::getline(file, found) && found == name) return true;
  }
  return false;
}

TEST_SUITE("unit") {
  TEST_CASE("a hosted runtime opens and streams on its host's thread, without a loop thread") {
    const auto expected = small_model(3);
    const temporary_directory place;
    place.write(expected);
    scripted_server server([&place](const seen_request& request) -> steps {
      std::ifstream file(place.path_of(request.path().substr(1)), std::ios::binary);
      if (!file) return {action::send{test::answer(404)}};
      const std::string bytes((std::istreambuf_iterator<char>(file)), {});
      return {action::send{test::answer_with(bytes, request)}};
    });
    const auto host = std::make_shared<simple_host>();
    runtime engine({.host = host});
    CHECK(engine.threads() == 1);
    REQUIRE(host->loop() != nullptr);
    for (const auto& uri : {place.path(), server.url("/" + expected.files.begin()->first)}) {
      const model opened = host->run(open(engine, uri));
      auto tensors = opened.stream();
      const auto all = host->run(test::drain(&tensors, &expected));
      CHECK(all.right);
      CHECK(all.names.size() == opened.tensors().size());
    }
    CHECK(!has_thread("headrace-0"));
  }

  TEST_CASE("other threads may use a hosted runtime, which its host serves meanwhile") {
    const temporary_directory place;
    const auto expected = small_model();
    place.write(expected);
    const auto host = std::make_shared<simple_host>();
    runtime engine({.host = host});
    std::atomic<bool> finished{false};
    bool right = false;
    std::jthread other([&] {
      const model opened = test::run(open(engine, place.path()));
      right = test::stream_all(opened, expected).right;
      finished = true;
    });
    CHECK(host->serve_until(finished));
    other.join();
    CHECK(right);
  }

  TEST_CASE("a hosted runtime ends what is open when it is destroyed, and detaches its host") {
    const temporary_directory place;
    const auto expected = small_model(1, 192, 8);
    place.write(expected);
    const test::process_counts before;
    std::optional<async_generator<tensor>> tensors;
    const auto host = std::make_shared<simple_host>();
    {
      runtime engine({.host = host});
      const model opened = host->run(open(engine, place.path(), {.chunk_size = 64_KiB}));
      tensors = opened.stream({.memory_limit = 256_KiB});
      CHECK(host->run(tensors->next()) != nullptr);
      auto dropped = opened.stream({.memory_limit = 256_KiB});
      CHECK(host->run(dropped.next()) != nullptr);
    }
    CHECK(host->loop() == nullptr);
    const auto failed = failure_of([&] {
      while (test::run(tensors->next()) != nullptr) {
      }
    });
    REQUIRE(failed);
    CHECK(failed->kind() == errc::cancelled);
    tensors.reset();
    CHECK(before.reached_again());
  }

  TEST_CASE("a hosted runtime can be ended by its host before it is destroyed") {
    const temporary_directory place;
    place.write(small_model());
    const auto host = std::make_shared<simple_host>();
    runtime engine({.host = host});
    const model opened = host->run(open(engine, place.path()));
    auto tensors = opened.stream();
    CHECK(host->run(tensors.next()) != nullptr);
    host->loop()->end();
    CHECK(host->loop() == nullptr);
    const auto failed =
        failure_of([&] { static_cast<void>(test::run(open(engine, place.path()))); });
    REQUIRE(failed);
    CHECK(failed->kind() == errc::cancelled);
  }

  TEST_CASE("a stop of what runs on a hosted loop ends it") {
    scripted_server server([](const seen_request&) -> steps { return {action::stall{}}; });
    const auto host = std::make_shared<simple_host>();
    runtime engine({.host = host});
    std::stop_source source;
    std::jthread stopper([&] {
      static_cast<void>(server.wait_for_requests(1));
      source.request_stop();
    });
    const auto failed = failure_of([&] {
      static_cast<void>(host->run(open(engine, server.url("/m.safetensors")), source.get_token()));
    });
    REQUIRE(failed);
    CHECK(failed->kind() == errc::cancelled);
  }

  TEST_CASE("a time limit passes on a hosted loop") {
    scripted_server server([](const seen_request&) -> steps { return {action::stall{}}; });
    const auto host = std::make_shared<simple_host>();
    runtime engine({.host = host});
    const auto failed = failure_of([&] {
      static_cast<void>(host->run(open(engine, server.url("/m.safetensors"), {.deadline = 5ms})));
    });
    REQUIRE(failed);
    CHECK(failed->kind() == errc::timeout);
  }

  TEST_CASE("sync_wait on the host's thread is refused instead of waiting for itself") {
    const temporary_directory place;
    place.write(small_model());
    const auto host = std::make_shared<simple_host>();
    runtime engine({.host = host});
    const auto opening =
        failure_of([&] { static_cast<void>(sync_wait(open(engine, place.path()))); });
    REQUIRE(opening);
    CHECK(opening->kind() == errc::invalid_request);
    CHECK(opening->message().find("sync_wait") != std::string::npos);
    const model opened = host->run(open(engine, place.path()));
    auto tensors = opened.stream();
    const auto streaming = failure_of([&] { static_cast<void>(sync_wait(tensors.next())); });
    REQUIRE(streaming);
    CHECK(streaming->kind() == errc::invalid_request);
  }

  TEST_CASE("a hosted loop that is driven by another thread says so") {
    const auto host = std::make_shared<simple_host>();
    const runtime engine({.host = host});
    std::optional<error> failed;
    std::thread other(
        [&] { failed = failure_of([&] { static_cast<void>(host->loop()->poll()); }); });
    other.join();
    REQUIRE(failed);
    CHECK(failed->kind() == errc::invalid_request);
    CHECK(failed->message().find("thread") != std::string::npos);
  }

  TEST_CASE("a host and a number of threads contradict each other") {
    const auto failed = failure_of(
        [] { const runtime engine({.threads = 2, .host = std::make_shared<simple_host>()}); });
    REQUIRE(failed);
    CHECK(failed->kind() == errc::invalid_request);
  }

#ifndef HEADRACE_NO_FORK
  TEST_CASE("a fork does not wait for a host that stands still; its child takes another runtime") {
    const temporary_directory place;
    const auto expected = small_model();
    place.write(expected);
    const auto host = std::make_shared<simple_host>();
    runtime engine({.host = host});
    const model opened = host->run(open(engine, place.path()));
    auto tensors = opened.stream();
    CHECK(host->run(tensors.next()) != nullptr);
    const auto fork_and_check = [&] {
      const pid_t child = ::fork();
      if (child == 0) {
        bool right = false;
        try {
          const auto refused =
              failure_of([&] { static_cast<void>(test::run(open(engine, place.path()))); });
          right = refused && refused->kind() == errc::cancelled &&
                  refused->message().find("fork") != std::string::npos &&
                  host->loop()->left_behind() && !host->loop()->poll();
          runtime fresh({.threads = 1});
          const model again = test::run(open(fresh, place.path()));
          right = right && test::stream_all(again, expected).right;
        } catch (...) {  // NOLINT(bugprone-empty-catch): the status tells
        }
        ::_exit(right ? 0 : 1);
      }
      const auto limit = std::chrono::steady_clock::now() + 30s;
      int status = 0;
      while (::waitpid(child, &status, WNOHANG) == 0) {
        if (std::chrono::steady_clock::now() > limit) {
          ::kill(child, SIGKILL);
          ::waitpid(child, &status, 0);
          return false;
        }
        std::this_thread::yield();
      }
      return WIFEXITED(status) && WEXITSTATUS(status) == 0;
    };
    CHECK(fork_and_check());
    // From another thread, while nobody takes turns and while somebody does.
    for (const bool serving : {false, true}) {
      std::atomic<bool> finished{false};
      bool right = false;
      std::jthread forker([&] {
        right = fork_and_check();
        finished = true;
      });
      if (serving) CHECK(host->serve_until(finished));
      forker.join();
      CHECK(right);
    }
    std::size_t rest = 1;
    while (host->run(tensors.next()) != nullptr) ++rest;
    CHECK(rest == expected.tensors());
  }
#endif
}

}  // namespace
}  // namespace headrace
