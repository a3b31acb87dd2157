#include "serving.hpp"

#include <boost/asio/bind_executor.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <support/scripted_server.hpp>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <set>
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

namespace net = boost::asio;
namespace action = test::action;
using namespace std::chrono_literals;
using test::model_on_disk;
using test::scripted_server;
using test::seen_request;
using test::steps;

/// Whether the process has a loop's thread.
bool has_loop_thread() {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream file(entry.path() / "comm");
    std::string found;
    if (std::getline(file, found) && found == "headrace-0") return true;
  }
  return false;
}

struct seen {
  std::size_t tensors = 0;
  int wrong = 0;
  bool finished = false;
  std::set<std::thread::id> threads;
};

net::awaitable<void> stream_all(runtime* engine, std::string uri, seen* all) {
  const model opened = co_await asio::async_open(*engine, uri, {}, net::use_awaitable);
  auto tensors = opened.stream({.memory_limit = 16_MiB});
  while (auto* one = co_await asio::async_next(tensors, net::use_awaitable)) {
    ++all->tensors;
    if (!test::right(*one)) ++all->wrong;
    all->threads.insert(std::this_thread::get_id());
  }
  co_await asio::async_close(tensors, net::use_awaitable);
  all->finished = true;
}

net::awaitable<void> tick(int* ticks, const bool* enough) {
  net::steady_timer timer(co_await net::this_coro::executor);
  while (!*enough) {
    timer.expires_after(100us);
    co_await timer.async_wait(net::use_awaitable);
    ++*ticks;
  }
}

/// Serves the files of a model over HTTP.
scripted_server serve(const model_on_disk& stored) {
  std::map<std::string, std::string> files;
  for (const auto& [name, held] : stored.expected.files)
    files["/" + name] = test::safetensors_file(held);
  return scripted_server([files = std::move(files)](const seen_request& request) -> steps {
    const auto file = files.find(std::string(request.path()));
    if (file == files.end()) return {action::send{test::answer(404)}};
    return {action::send{test::answer_with(file->second, request)}};
  });
}

scripted_server silent_server() {
  return scripted_server([](const seen_request&) -> steps { return {action::stall{}}; });
}

TEST_SUITE("unit") {
  TEST_CASE("a model streams inside a context, on its one thread, from files and over HTTP") {
    const model_on_disk stored;
    auto server = serve(stored);
    net::io_context context(1);
    runtime engine = asio::hosted(context);
    const auto& [file, held] = *stored.expected.files.begin();
    seen local;
    seen remote;
    net::co_spawn(context, stream_all(&engine, stored.uri(), &local), net::detached);
    net::co_spawn(context, stream_all(&engine, server.url("/" + file), &remote), net::detached);
    CHECK(test::run_to_end(context));
    CHECK(local.finished);
    CHECK(local.tensors == stored.expected.tensors());
    CHECK(remote.finished);
    CHECK(remote.tensors == held.size());
    CHECK(local.wrong + remote.wrong == 0);
    CHECK(local.threads == std::set{std::this_thread::get_id()});
    CHECK(!has_loop_thread());
  }

  TEST_CASE("a context has its turns while a model streams") {
    const model_on_disk stored(test::small_model(2, 384, 8));
    auto server = serve(stored);
    net::io_context context(1);
    runtime engine = asio::hosted(context);
    seen all;
    int ticks = 0;
    net::co_spawn(context,
                  stream_all(&engine, server.url("/" + stored.expected.files.begin()->first), &all),
                  net::detached);
    net::co_spawn(context, tick(&ticks, &all.finished), net::detached);
    CHECK(test::run_to_end(context));
    CHECK(all.finished);
    CHECK(ticks > 0);
  }

  TEST_CASE("a runtime with nothing to do lets its context end, again and again") {
    const model_on_disk stored;
    auto server = serve(stored);
    net::io_context context(1);
    runtime engine = asio::hosted(context);
    CHECK(test::run_to_end(context));
    for (int round = 0; round < 5; ++round) {
      context.restart();
      seen all;
      // Idle connections stay open in between, and their timers under way.
      net::co_spawn(
          context,
          stream_all(&engine, server.url("/" + stored.expected.files.begin()->first), &all),
          net::detached);
      const auto began = std::chrono::steady_clock::now();
      CHECK(test::run_to_end(context));
      CHECK(all.finished);
      CHECK(std::chrono::steady_clock::now() - began < 30s);
      context.restart();
      context.poll();
      CHECK(context.stopped());
    }
  }

  TEST_CASE("work of the user's own keeps a context running beside a runtime") {
    net::io_context context(1);
    const runtime engine = asio::hosted(context);
    auto work = net::make_work_guard(context);
    context.run_for(5ms);
    CHECK(!context.stopped());
    work.reset();
    CHECK(test::run_to_end(context));
  }

  TEST_CASE("a time limit passes inside a context that does nothing else") {
    auto server = silent_server();
    net::io_context context(1);
    runtime engine = asio::hosted(context);
    errc kind{};
    asio::async_open(engine, server.url("/m.safetensors"), {.deadline = 5ms},
                     net::bind_executor(context, [&](std::exception_ptr failed, model) {
                       kind = test::kind_of(failed);
                     }));
    CHECK(test::run_to_end(context));
    CHECK(kind == errc::timeout);
  }

  TEST_CASE("a runtime that goes before its context completes what waits with cancelled") {
    auto server = silent_server();
    net::io_context context(1);
    // Two runtimes in one context.
    runtime other = asio::hosted(context);
    errc kind{};
    {
      runtime first = asio::hosted(context);
      asio::async_open(first, server.url("/m.safetensors"), {},
                       net::bind_executor(context, [&](std::exception_ptr failed, model) {
                         kind = test::kind_of(failed);
                       }));
      const bool reached = test::eventually([&] {
        context.poll();
        return !server.requests().empty();
      });
      CHECK(reached);
    }
    CHECK(test::run_to_end(context));
    CHECK(kind == errc::cancelled);
    const model_on_disk stored;
    context.restart();
    seen all;
    net::co_spawn(context, stream_all(&other, stored.uri(), &all), net::detached);
    CHECK(test::run_to_end(context));
    CHECK(all.finished);
  }

  TEST_CASE("a context that goes before its runtime ends the streams, at every moment") {
    const model_on_disk stored(test::small_model(1, 192, 8));
    auto server = serve(stored);
    const std::string uri = server.url("/" + stored.expected.files.begin()->first);
    for (int round = 0; round < 24; ++round) {
      seen all;
      auto context = std::make_unique<net::io_context>(1);
      runtime engine = asio::hosted(*context);
      net::co_spawn(*context, stream_all(&engine, uri, &all), net::detached);
      for (int turn = 0; turn < 4 * round; ++turn) context->run_one_for(1ms);
      context.reset();
      std::optional<error> failed;
      try {
        static_cast<void>(sync_wait(open(engine, uri)));
      } catch (const error& thrown) {
        failed = thrown;
      }
      REQUIRE(failed);
      CHECK(failed->kind() == errc::cancelled);
    }
  }

  TEST_CASE("a context run by another thread than the runtime's says what to do") {
    net::io_context context;
    runtime engine = asio::hosted(context);
    std::optional<error> failed;
    std::thread other([&] {
      try {
        context.run_for(60s);
      } catch (const error& thrown) {
        failed = thrown;
      }
    });
    other.join();
    REQUIRE(failed);
    CHECK(failed->kind() == errc::invalid_request);
  }

  TEST_CASE("a context of several threads gets a loop with a thread of its own") {
    const model_on_disk stored;
    net::io_context context;
    runtime engine = asio::hosted(context, {}, asio::context_threads::several);
    CHECK(engine.threads() == 1);
    seen all[4];
    for (auto& one : all)
      net::co_spawn(context, stream_all(&engine, stored.uri(), &one), net::detached);
    CHECK(test::run_to_end(context, 4));
    for (const auto& one : all) {
      CHECK(one.finished);
      CHECK(one.tensors == stored.expected.tensors());
      CHECK(one.wrong == 0);
    }
    CHECK(has_loop_thread());
  }

#ifndef HEADRACE_NO_FORK
  TEST_CASE("a forked child goes on with the context it inherited, without the runtime") {
    const model_on_disk stored;
    auto server = serve(stored);
    net::io_context context(1);
    runtime engine = asio::hosted(context);
    seen before;
    const std::string uri = server.url("/" + stored.expected.files.begin()->first);
    net::co_spawn(context, stream_all(&engine, uri, &before), net::detached);
    CHECK(test::run_to_end(context));
    context.notify_fork(net::io_context::fork_prepare);
    const pid_t child = ::fork();
    if (child == 0) {
      bool right = false;
      try {
        context.notify_fork(net::io_context::fork_child);
        context.restart();
        errc kind{};
        asio::async_open(engine, uri, {},
                         net::bind_executor(context, [&](std::exception_ptr failed, model) {
                           kind = test::kind_of(failed);
                         }));
        right = test::run_to_end(context) && kind == errc::cancelled;
      } catch (...) {  // NOLINT(bugprone-empty-catch): the status tells
      }
      ::_exit(right ? 0 : 1);
    }
    context.notify_fork(net::io_context::fork_parent);
    const auto limit = std::chrono::steady_clock::now() + 60s;
    int status = 0;
    while (::waitpid(child, &status, WNOHANG) == 0) {
      if (std::chrono::steady_clock::now() > limit) ::kill(child, SIGKILL);
      std::this_thread::yield();
    }
    CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 0));
    context.restart();
    seen after;
    net::co_spawn(context, stream_all(&engine, uri, &after), net::detached);
    CHECK(test::run_to_end(context));
    CHECK(after.finished);
  }
#endif
}

}  // namespace
}  // namespace headrace
