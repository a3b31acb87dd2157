#include "serving.hpp"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/bind_allocator.hpp>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/deferred.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/use_future.hpp>
#include <boost/version.hpp>
#include <support/scripted_server.hpp>

#include <atomic>
#include <cstddef>
#include <future>
#include <memory>
#include <optional>
#include <stdexcept>
#include <thread>
#include <tuple>

#if BOOST_VERSION >= 108600
#include <boost/asio/cancel_after.hpp>
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

/// Answers nothing.
scripted_server silent_server() {
  return scripted_server([](const seen_request&) -> steps { return {action::stall{}}; });
}

/// Counts what is allocated and not given back.
template <class T>
struct counting_allocator {
  using value_type = T;

  explicit counting_allocator(std::atomic<std::ptrdiff_t>* given, std::atomic<int>* all) noexcept
      : live(given), total(all) {}
  template <class U>
  counting_allocator(const counting_allocator<U>& other) noexcept  // NOLINT: as allocators are
      : live(other.live), total(other.total) {}

  T* allocate(std::size_t count) {
    ++*live;
    ++*total;
    return std::allocator<T>().allocate(count);
  }
  void deallocate(T* memory, std::size_t count) noexcept {
    --*live;
    std::allocator<T>().deallocate(memory, count);
  }
  template <class U>
  friend bool operator==(const counting_allocator& one, const counting_allocator<U>& other) {
    return one.live == other.live;
  }

  std::atomic<std::ptrdiff_t>* live;
  std::atomic<int>* total;
};

net::awaitable<std::size_t> open_and_count(runtime* engine, std::string uri) {
  const model opened = co_await asio::async_open(*engine, uri, {}, net::use_awaitable);
  co_return opened.tensors().size();
}

net::awaitable<errc> open_and_fail(runtime* engine, std::string uri, std::string* message) {
  auto token = net::as_tuple(net::use_awaitable);
  auto [failed, opened] = co_await asio::async_open(*engine, uri, {}, token);
  if (failed) *message = asio::error_of(failed).message();
  co_return test::kind_of(failed);
}

TEST_SUITE("unit") {
  TEST_CASE("a callback is called once, on its executor, with the model") {
    const model_on_disk stored;
    runtime engine({.threads = 1});
    net::io_context context;
    int calls = 0;
    std::thread::id where;
    asio::async_open(engine, stored.uri(), {},
                     net::bind_executor(context, [&](std::exception_ptr failed, model opened) {
                       ++calls;
                       where = std::this_thread::get_id();
                       CHECK(test::kind_of(failed) == errc{});
                       CHECK(opened.tensors().size() == stored.expected.tensors());
                     }));
    CHECK(calls == 0);
    CHECK(test::run_to_end(context));
    CHECK(calls == 1);
    CHECK(where == std::this_thread::get_id());
  }

  TEST_CASE("a callback without an executor is called on the system executor") {
    const model_on_disk stored;
    runtime engine({.threads = 1});
    std::promise<std::size_t> count;
    asio::async_open(engine, stored.uri(), {}, [&count](std::exception_ptr, model opened) {
      count.set_value(opened.tensors().size());
    });
    CHECK(count.get_future().get() == stored.expected.tensors());
  }

  TEST_CASE("use_awaitable gives the model, and throws with the whole message") {
    const model_on_disk stored;
    runtime engine({.threads = 1});
    net::io_context context;
    std::size_t count = 0;
    std::optional<error> failure;
    const auto note = [&](std::exception_ptr failed, std::size_t found) {
      count = found;
      if (failed) failure = asio::error_of(failed);
    };
    net::co_spawn(context, open_and_count(&engine, stored.uri()), note);
    CHECK(test::run_to_end(context));
    CHECK(count == stored.expected.tensors());
    CHECK(!failure);

    context.restart();
    const std::string nowhere = stored.place.path_of("nowhere");
    net::co_spawn(context, open_and_count(&engine, nowhere), note);
    CHECK(test::run_to_end(context));
    REQUIRE(failure);
    CHECK(failure->kind() == errc::not_found);
    CHECK(failure->message().find(nowhere) != std::string::npos);
  }

  TEST_CASE("use_future gives the model, and rethrows") {
    const model_on_disk stored;
    runtime engine({.threads = 1});
    std::future<model> opening = asio::async_open(engine, stored.uri(), {}, net::use_future);
    CHECK(opening.get().tensors().size() == stored.expected.tensors());
    std::future<model> failing = asio::async_open(engine, "/nowhere/at/all", {}, net::use_future);
    CHECK_THROWS_AS(failing.get(), error);
  }

  TEST_CASE("a deferred operation begins when it is called, not before") {
    const model_on_disk stored;
    runtime engine({.threads = 1});
    net::io_context context;
    std::size_t count = 0;
    {
      auto never = asio::async_open(engine, stored.uri(), {}, net::deferred);
      static_cast<void>(never);
    }
    auto later = asio::async_open(engine, stored.uri(), {}, net::deferred);
    CHECK(test::run_to_end(context));
    context.restart();
    std::move(later)(net::bind_executor(
        context, [&](std::exception_ptr, model opened) { count = opened.tensors().size(); }));
    CHECK(test::run_to_end(context));
    CHECK(count == stored.expected.tensors());
  }

  TEST_CASE("as_tuple gives the failure instead of throwing it") {
    runtime engine({.threads = 1});
    net::io_context context;
    errc kind{};
    std::string message;
    net::co_spawn(context, open_and_fail(&engine, "ftp://host/model", &message),
                  [&](std::exception_ptr, errc found) { kind = found; });
    CHECK(test::run_to_end(context));
    CHECK(kind == errc::unsupported);
    CHECK(message.find("ftp") != std::string::npos);
  }

  TEST_CASE("detached lets go of the outcome") {
    const model_on_disk stored;
    runtime engine({.threads = 1});
    asio::async_open(engine, stored.uri(), {}, net::detached);
    asio::async_open(engine, "/nowhere", {}, net::detached);
  }

  TEST_CASE("a handler that can only be moved is called") {
    const model_on_disk stored;
    runtime engine({.threads = 1});
    net::io_context context;
    int given = 0;
    asio::async_open(
        engine, stored.uri(), {},
        net::bind_executor(context, [&given, owned = std::make_unique<int>(7)](
                                        std::exception_ptr, model) { given = *owned; }));
    CHECK(test::run_to_end(context));
    CHECK(given == 7);
  }

  TEST_CASE("what a handler throws leaves run, and the context goes on") {
    const model_on_disk stored;
    runtime engine({.threads = 1});
    net::io_context context;
    asio::async_open(engine, stored.uri(), {},
                     net::bind_executor(context, [](std::exception_ptr, model) {
                       throw std::runtime_error("the handler's own");
                     }));
    CHECK_THROWS_WITH_AS(context.run_for(60s), "the handler's own", std::runtime_error);
    CHECK(test::run_to_end(context));
  }

  TEST_CASE(
      "the associated allocator is used, and has everything back when the handler is called") {
    const model_on_disk stored;
    runtime engine({.threads = 1});
    net::io_context context;
    std::atomic<std::ptrdiff_t> live{0};
    std::atomic<int> total{0};
    std::ptrdiff_t in_handler = -1;
    const counting_allocator<void*> memory(&live, &total);
    asio::async_open(
        engine, stored.uri(), {},
        net::bind_executor(context, net::bind_allocator(memory, [&](std::exception_ptr, model) {
                             in_handler = live.load();
                           })));
    CHECK(live > 0);
    CHECK(test::run_to_end(context));
    CHECK(in_handler == 0);
    CHECK(total > 0);
  }

  TEST_CASE(
      "an operation on a strand of a context run by several threads completes on the strand") {
    const model_on_disk stored;
    runtime engine({.threads = 2});
    net::io_context context;
    auto strand = net::make_strand(context);
    std::atomic<int> inside{0};
    std::atomic<int> wrong{0};
    int calls = 0;  // the strand guards it
    for (int number = 0; number < 40; ++number) {
      asio::async_open(engine, stored.uri(), {},
                       net::bind_executor(strand, [&](std::exception_ptr failed, model opened) {
                         if (inside.fetch_add(1) != 0 || !strand.running_in_this_thread()) ++wrong;
                         if (failed || opened.tensors().size() != stored.expected.tensors())
                           ++wrong;
                         ++calls;
                         inside.fetch_sub(1);
                       }));
    }
    CHECK(test::run_to_end(context, 4));
    CHECK(calls == 40);
    CHECK(wrong == 0);
  }

  TEST_CASE("each type of cancellation ends an open that waits") {
    auto server = silent_server();
    runtime engine({.threads = 1});
    int expected = 0;
    for (const auto type : {net::cancellation_type::terminal, net::cancellation_type::partial,
                            net::cancellation_type::total}) {
      net::io_context context;
      net::cancellation_signal signal;
      errc kind{};
      asio::async_open(
          engine, server.url("/m.safetensors"), {},
          net::bind_cancellation_slot(
              signal.slot(), net::bind_executor(context, [&](std::exception_ptr failed, model) {
                kind = test::kind_of(failed);
              })));
      CHECK(server.wait_for_requests(++expected));
      net::post(context, [&] { signal.emit(type); });
      CHECK(test::run_to_end(context));
      CHECK(kind == errc::cancelled);
    }
  }

  TEST_CASE("cancellation before, during and after an open gives one outcome, and does no harm") {
    const model_on_disk stored;
    runtime engine({.threads = 1});
    for (int round = 0; round < 60; ++round) {
      net::io_context context;
      net::cancellation_signal signal;
      int calls = 0;
      errc kind{};
      asio::async_open(
          engine, stored.uri(), {},
          net::bind_cancellation_slot(
              signal.slot(), net::bind_executor(context, [&](std::exception_ptr failed, model) {
                ++calls;
                kind = test::kind_of(failed);
              })));
      const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(10 * round);
      while (std::chrono::steady_clock::now() < until) context.poll_one();
      signal.emit(net::cancellation_type::terminal);
      signal.emit(net::cancellation_type::terminal);
      CHECK(test::run_to_end(context));
      signal.emit(net::cancellation_type::terminal);
      CHECK(calls == 1);
      CHECK((kind == errc{} || kind == errc::cancelled));
    }
  }

  TEST_CASE("a context that is destroyed first destroys the handler uncalled") {
    auto server = silent_server();
    runtime engine({.threads = 1});
    bool called = false;
    auto owned = std::make_shared<int>(1);
    const std::weak_ptr<int> watched = owned;
    {
      net::io_context context;
      // The guard of the work inside the handler would touch a destroyed context, came it late.
      asio::async_open(
          engine, server.url("/m.safetensors"), {},
          net::bind_executor(
              context, [&called, held = std::move(owned), work = net::make_work_guard(context)](
                           std::exception_ptr, model) { called = true; }));
      CHECK(server.wait_for_requests(1));
      CHECK(!watched.expired());
    }
    CHECK(watched.expired());
    CHECK(!called);
  }

  TEST_CASE("a context that is destroyed with a completion on its way destroys that") {
    const model_on_disk stored;
    runtime engine({.threads = 1});
    for (int round = 0; round < 40; ++round) {
      auto owned = std::make_shared<int>(1);
      const std::weak_ptr<int> watched = owned;
      {
        net::io_context context;
        asio::async_open(
            engine, stored.uri(), {},
            net::bind_executor(context, [held = std::move(owned)](std::exception_ptr, model) {}));
        const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(20 * round);
        while (std::chrono::steady_clock::now() < until) {
          if (round % 2 == 0) context.poll_one();
        }
      }
      CHECK(watched.expired());
    }
  }

  TEST_CASE("a thread pool that is stopped and destroyed takes its operations with it") {
    auto server = silent_server();
    runtime engine({.threads = 1});
    bool called = false;
    {
      net::thread_pool pool(2);
      asio::async_open(engine, server.url("/m.safetensors"), {},
                       net::bind_executor(pool.get_executor(),
                                          [&called](std::exception_ptr, model) { called = true; }));
      CHECK(server.wait_for_requests(1));
      pool.stop();
    }
    CHECK(!called);
  }

  TEST_CASE("a runtime that goes completes what waits with cancelled") {
    auto server = silent_server();
    auto engine = std::make_unique<runtime>(runtime_options{.threads = 1});
    net::io_context context;
    errc kind{};
    asio::async_open(*engine, server.url("/m.safetensors"), {},
                     net::bind_executor(context, [&](std::exception_ptr failed, model) {
                       kind = test::kind_of(failed);
                     }));
    CHECK(server.wait_for_requests(1));
    engine.reset();
    CHECK(test::run_to_end(context));
    CHECK(kind == errc::cancelled);
  }

  TEST_CASE("an operation that waits keeps the context running") {
    auto server = silent_server();
    runtime engine({.threads = 1});
    net::io_context context;
    net::cancellation_signal signal;
    asio::async_open(
        engine, server.url("/m.safetensors"), {},
        net::bind_cancellation_slot(signal.slot(),
                                    net::bind_executor(context, [](std::exception_ptr, model) {})));
    context.poll();
    CHECK(!context.stopped());
    signal.emit(net::cancellation_type::terminal);
    CHECK(test::run_to_end(context));
  }

#if BOOST_VERSION >= 108600
  TEST_CASE("cancel_after ends an open that takes too long") {
    auto server = silent_server();
    runtime engine({.threads = 1});
    net::io_context context;
    errc kind{};
    asio::async_open(
        engine, server.url("/m.safetensors"), {},
        net::cancel_after(1ms, net::bind_executor(context, [&](std::exception_ptr failed, model) {
                            kind = test::kind_of(failed);
                          })));
    CHECK(test::run_to_end(context));
    CHECK(kind == errc::cancelled);
  }
#endif
}

}  // namespace
}  // namespace headrace
