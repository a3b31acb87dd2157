#include "stream/runtime_state.hpp"
#include "streaming.hpp"

#include <headrace/stream/model.hpp>
#include <headrace/stream/runtime.hpp>

#include <doctest/doctest.h>
#include <support/scripted_server.hpp>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <functional>
#include <string>
#include <thread>

// A child of a process with threads may not start threads under TSan.
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define HEADRACE_NO_FORK 1
#endif
#endif

#ifndef HEADRACE_NO_FORK

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

/// Whether `body`, run in a forked child, gives true within a limit.
bool child_succeeds(const std::function<bool()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    bool right = false;
    try {
      right = body();
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
    std::this_thread::sleep_for(1ms);
  }
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

task<void> stream_again_and_again(model from, std::atomic<bool>* enough,
                                  std::atomic<int>* streamed) {
  while (!enough->load()) {
    auto tensors = from.stream();
    while (co_await tensors.next() != nullptr) {
    }
    co_await tensors.close();
    streamed->fetch_add(1);
  }
}

TEST_SUITE("unit") {
  TEST_CASE("a child that is forked in the middle of a stream can stream, and so can its parent") {
    const temporary_directory place;
    const auto expected = small_model(4, 192, 8);
    place.write(expected);
    runtime engine({.threads = 2});
    const model opened = test::run(open(engine, place.path(), {.chunk_size = 64_KiB}));
    for (int round = 0; round < 20; ++round) {
      auto tensors = opened.stream({.memory_limit = 256_KiB});
      for (int taken = 0; taken < round; ++taken) REQUIRE(test::run(tensors.next()) != nullptr);
      CHECK(child_succeeds([&] {
        // Its parent's model, and one of its own.
        const bool inherited = test::stream_all(opened, expected).right;
        const model again = test::run(open(engine, place.path()));
        return inherited && test::stream_all(again, expected).right;
      }));
      test::run(tensors.close());
      CHECK(test::stream_all(opened, expected).right);
    }
  }

  TEST_CASE(
      "a stream that began before a fork is cancelled in the child, and goes on in the parent") {
    const temporary_directory place;
    const auto expected = small_model();
    place.write(expected);
    runtime engine({.threads = 2});
    const model opened = test::run(open(engine, place.path()));
    auto tensors = opened.stream();
    REQUIRE(test::run(tensors.next()) != nullptr);
    CHECK(child_succeeds([&] {
      const auto failed = failure_of([&] {
        while (test::run(tensors.next()) != nullptr) {
        }
      });
      test::run(tensors.close());
      return failed && failed->kind() == errc::cancelled;
    }));
    std::size_t rest = 1;
    while (test::run(tensors.next()) != nullptr) ++rest;
    CHECK(rest == expected.tensors());
  }

  TEST_CASE("a fork does not wait for a loop that is about to begin a stream") {
    const temporary_directory place;
    place.write(small_model(1, 24, 1));
    std::atomic<bool> enough{false};  // outlive the engine, which ends what counts on them
    std::atomic<int> streamed{0};
    runtime engine({.threads = 2});
    const model opened = test::run(open(engine, place.path()));
    for (int number = 0; number < 4; ++number) {
      engine.state()->spawn([&](detail::loop_services&) {
        return stream_again_and_again(opened, &enough, &streamed);
      });
    }
    for (int round = 0; round < 30; ++round) {
      const int before = streamed.load();
      while (streamed.load() == before) std::this_thread::yield();
      CHECK(child_succeeds([] { return true; }));
    }
    enough = true;
  }

  TEST_CASE("connections of the parent are not used by the child") {
    const auto expected = small_model(1);
    const std::string bytes = test::safetensors_file(expected.files.begin()->second);
    scripted_server server([&](const seen_request& request) -> steps {
      if (request.path() != "/m.safetensors") return {action::send{test::answer(404)}};
      return {action::send{test::answer_with(bytes, request)}};
    });
    runtime engine({.threads = 1});
    const model opened = test::run(open(engine, server.url("/m.safetensors")));
    REQUIRE(test::stream_all(opened, expected).right);
    for (int round = 0; round < 5; ++round) {
      CHECK(child_succeeds([&] { return test::stream_all(opened, expected).right; }));
      CHECK(test::stream_all(opened, expected).right);
    }
  }

  TEST_CASE("a child that drops what it inherited, and uses nothing, ends well") {
    const temporary_directory place;
    const auto expected = small_model();
    place.write(expected);
    auto engine = std::make_unique<runtime>(runtime_options{.threads = 2});
    auto opened = std::make_unique<model>(test::run(open(*engine, place.path())));
    auto tensors = opened->stream();
    tensor kept = std::move(*test::run(tensors.next()));
    CHECK(child_succeeds([&] {
      tensors = {};
      kept = {};
      opened.reset();
      engine.reset();
      return true;
    }));
  }
}

}  // namespace
}  // namespace headrace

#endif
