#include "serving.hpp"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/use_future.hpp>
#include <support/scripted_server.hpp>

#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <set>
#include <string>

namespace headrace {
namespace {

namespace net = boost::asio;
namespace action = test::action;
using namespace std::chrono_literals;
using test::model_on_disk;
using test::scripted_server;
using test::seen_request;
using test::steps;

model open_now(runtime& engine, const std::string& uri, open_options options = {}) {
  return sync_wait(open(engine, uri, std::move(options)));
}

/// What a consumer has seen.
struct seen {
  std::set<std::string> names;
  int wrong = 0;
  bool ended = false;
};

net::awaitable<void> take_all(model from, stream_options options, seen* all) {
  auto tensors = from.stream(std::move(options));
  while (auto* one = co_await asio::async_next(tensors, net::use_awaitable)) {
    all->names.emplace(one->name());
    if (!test::right(*one)) ++all->wrong;
  }
  co_await asio::async_close(tensors, net::use_awaitable);
  all->ended = true;
}

net::awaitable<void> take_for_ever(async_generator<tensor> tensors, bool* destroyed) {
  struct noting {
    bool* flag;
    ~noting() { *flag = true; }
  } const noted{destroyed};
  while (co_await asio::async_next(tensors, net::use_awaitable) != nullptr) {
  }
}

/// Values of a test's own; the last one is waited for in vain.
async_generator<int> count_to(int last, bool* stopped) {
  for (int number = 1; number <= last; ++number) co_yield number;
  try {
    co_await sleep_for(1h);
  } catch (const error&) {
    *stopped = true;
    throw;
  }
}

async_generator<int> count_and_fail(int last) {
  for (int number = 1; number <= last; ++number) co_yield number;
  throw error(errc::not_found, "nothing beyond that");
}

/// A model whose first file opens and whose data never comes.
struct stalling_model {
  std::string bytes = test::safetensors_file({{"a", dtype::u8, {300'000}}});
  scripted_server server{[this](const seen_request& request) -> steps {
    if (request.range() && request.range()->begin == 0)
      return {action::send{test::answer_with(bytes, request)}};
    return {action::stall{}};
  }};
  [[nodiscard]] std::string uri() const { return server.url("/m.safetensors"); }
};

TEST_SUITE("unit") {
  TEST_CASE("every tensor comes, by use_awaitable, on one thread and on several") {
    const model_on_disk stored;
    runtime engine({.threads = 2});
    const model opened = open_now(engine, stored.uri());
    for (const unsigned threads : {1u, 4u}) {
      net::io_context context;
      seen all[3];
      for (auto& one : all)
        net::co_spawn(context, take_all(opened, {.memory_limit = 16_MiB}, &one), net::detached);
      CHECK(test::run_to_end(context, threads));
      for (const auto& one : all) {
        CHECK(one.ended);
        CHECK(one.wrong == 0);
        CHECK(one.names.size() == stored.expected.tensors());
      }
    }
  }

  TEST_CASE("a chain of callbacks takes every tensor without growing the stack") {
    test::checkpoint many;
    for (int number = 0; number < 3000; ++number)
      many.files["m.safetensors"].push_back({"t" + std::to_string(number), dtype::u8, {8}});
    const model_on_disk stored(std::move(many));
    runtime engine({.threads = 1});
    const model opened = open_now(engine, stored.uri());
    net::io_context context;
    auto tensors = opened.stream();
    int count = 0;
    int nested = 0;
    bool inside = false;
    std::function<void()> next = [&] {
      asio::async_next(tensors,
                       net::bind_executor(context, [&](std::exception_ptr failed, tensor* one) {
                         REQUIRE(!failed);
                         if (inside) ++nested;
                         inside = true;
                         if (one != nullptr) {
                           ++count;
                           next();
                         }
                         inside = false;
                       }));
    };
    next();
    CHECK(test::run_to_end(context));
    CHECK(count == 3000);
    CHECK(nested == 0);
  }

  TEST_CASE("use_future hands over one tensor after the other") {
    const model_on_disk stored;
    runtime engine({.threads = 1});
    const model opened = open_now(engine, stored.uri());
    auto tensors = opened.stream();
    std::size_t count = 0;
    while (auto* one = asio::async_next(tensors, net::use_future).get()) {
      CHECK(test::right(*one));
      ++count;
    }
    asio::async_close(tensors, net::use_future).get();
    CHECK(count == stored.expected.tensors());
  }

  TEST_CASE("a value that is ready is posted, never given inside the call") {
    bool stopped = false;
    auto numbers = count_to(2, &stopped);
    net::io_context context;
    int given = 0;
    asio::async_next(numbers, net::bind_executor(context, [&](std::exception_ptr, int* value) {
                       given = *value;
                     }));
    CHECK(given == 0);
    CHECK(test::run_to_end(context));
    CHECK(given == 1);
  }

  TEST_CASE("an error is given once, and null after it") {
    auto numbers = count_and_fail(1);
    net::io_context context;
    std::vector<errc> kinds;
    std::vector<bool> values;
    for (int round = 0; round < 3; ++round) {
      asio::async_next(numbers,
                       net::bind_executor(context, [&](std::exception_ptr failed, int* value) {
                         kinds.push_back(test::kind_of(failed));
                         values.push_back(value != nullptr);
                       }));
      CHECK(test::run_to_end(context));
      context.restart();
    }
    CHECK(kinds == std::vector<errc>{errc{}, errc::not_found, errc{}});
    CHECK(values == std::vector<bool>{true, false, false});
  }

  TEST_CASE("terminal and partial cancellation end a stream, total is ignored") {
    const stalling_model stored;
    runtime engine({.threads = 1});
    const model opened = open_now(engine, stored.uri());
    for (const auto type : {net::cancellation_type::terminal, net::cancellation_type::partial}) {
      net::io_context context;
      net::cancellation_signal signal;
      auto tensors = opened.stream();
      std::vector<errc> kinds;
      asio::async_next(
          tensors,
          net::bind_cancellation_slot(
              signal.slot(), net::bind_executor(context, [&](std::exception_ptr failed, tensor*) {
                kinds.push_back(test::kind_of(failed));
              })));
      context.poll();
      signal.emit(net::cancellation_type::total);
      context.poll();
      CHECK(kinds.empty());
      signal.emit(type);
      CHECK(test::run_to_end(context));
      CHECK(kinds == std::vector<errc>{errc::cancelled});
      context.restart();
      bool ended = false;
      asio::async_next(tensors,
                       net::bind_executor(context, [&](std::exception_ptr failed, tensor* one) {
                         ended = !failed && one == nullptr;
                       }));
      CHECK(test::run_to_end(context));
      CHECK(ended);
    }
  }

  TEST_CASE("a coroutine that loses a race against a timer is cancelled") {
    const stalling_model stored;
    runtime engine({.threads = 1});
    const model opened = open_now(engine, stored.uri());
    net::io_context context;
    bool timed_out = false;
    struct racing {
      static net::awaitable<void> run(model from, bool* late) {
        using namespace net::experimental::awaitable_operators;
        auto tensors = from.stream();
        net::steady_timer timer(co_await net::this_coro::executor, 2ms);
        auto outcome = co_await (asio::async_next(tensors, net::use_awaitable) ||
                                 timer.async_wait(net::use_awaitable));
        *late = outcome.index() == 1;
        co_await asio::async_close(tensors, net::use_awaitable);
      }
    };
    std::exception_ptr failure;
    net::co_spawn(context, racing::run(opened, &timed_out),
                  [&](std::exception_ptr failed) { failure = failed; });
    CHECK(test::run_to_end(context));
    CHECK(!failure);
    CHECK(timed_out);
  }

  TEST_CASE("a stop reaches a generator of one's own, whose pause it ends") {
    bool stopped = false;
    auto numbers = count_to(0, &stopped);
    net::io_context context;
    net::cancellation_signal signal;
    errc kind{};
    asio::async_next(numbers, net::bind_cancellation_slot(
                                  signal.slot(),
                                  net::bind_executor(context, [&](std::exception_ptr failed, int*) {
                                    kind = test::kind_of(failed);
                                  })));
    context.poll();
    signal.emit(net::cancellation_type::terminal);
    CHECK(test::run_to_end(context));
    CHECK(stopped);
    CHECK(kind == errc::cancelled);
  }

  TEST_CASE("a coroutine that owns its generator may go with its context, at every moment") {
    const model_on_disk stored;
    const stalling_model stalling;
    runtime engine({.threads = 1});
    const model opened = open_now(engine, stored.uri());
    const model waiting = open_now(engine, stalling.uri());
    for (int round = 0; round < 30; ++round) {
      bool first = false;
      bool second = false;
      {
        net::io_context context;
        net::co_spawn(context, take_for_ever(waiting.stream(), &first), net::detached);
        net::co_spawn(context, take_for_ever(opened.stream({.memory_limit = 16_MiB}), &second),
                      net::detached);
        // Two turns begin them.
        for (int turn = 0; turn < round + 2; ++turn) context.poll_one();
        if (round % 3 == 0) std::this_thread::yield();
      }
      CHECK(first);
      CHECK(second);
    }
  }

  TEST_CASE("close completes for a stream that has not begun, is under way, or has ended") {
    const model_on_disk stored;
    const stalling_model stalling;
    runtime engine({.threads = 1});
    const model opened = open_now(engine, stored.uri());
    const model waiting = open_now(engine, stalling.uri());
    for (const auto* from : {&opened, &waiting}) {
      for (int taken = 0; taken < 3; ++taken) {
        net::io_context context;
        auto tensors = from->stream();
        int closed = 0;
        for (int count = 0; from == &opened && count < taken; ++count) {
          asio::async_next(tensors,
                           net::bind_executor(context, [](std::exception_ptr, tensor*) {}));
          CHECK(test::run_to_end(context));
          context.restart();
        }
        asio::async_close(tensors, net::bind_executor(context, [&](std::exception_ptr failed) {
                            CHECK(!failed);
                            ++closed;
                          }));
        CHECK(test::run_to_end(context));
        CHECK(closed == 1);
      }
    }
  }

  TEST_CASE("load gives every tensor by its name, and they outlive the runtime") {
    const model_on_disk stored;
    asio::tensor_map weights;
    {
      runtime engine({.threads = 2});
      const model opened = open_now(engine, stored.uri());
      net::io_context context;
      asio::async_load(
          opened, {},
          net::bind_executor(context, [&](std::exception_ptr failed, asio::tensor_map loaded) {
            CHECK(!failed);
            weights = std::move(loaded);
          }));
      CHECK(test::run_to_end(context));
    }
    CHECK(weights.size() == stored.expected.tensors());
    for (const auto& [name, one] : weights) {
      CHECK(one.name() == name);
      CHECK(test::right(one));
    }
    CHECK(weights.find(std::string_view("norm.weight")) != weights.end());
  }

  TEST_CASE("a load that is cancelled, or that fails, gives no tensor") {
    const stalling_model stalling;
    runtime engine({.threads = 1});
    const model opened = open_now(engine, stalling.uri());
    net::io_context context;
    net::cancellation_signal signal;
    std::vector<errc> kinds;
    std::size_t tensors = 0;
    const auto note = [&](std::exception_ptr failed, asio::tensor_map loaded) {
      kinds.push_back(test::kind_of(failed));
      tensors += loaded.size();
    };
    asio::async_load(opened, {},
                     net::bind_cancellation_slot(signal.slot(), net::bind_executor(context, note)));
    context.poll();
    signal.emit(net::cancellation_type::total);
    CHECK(test::run_to_end(context));
    context.restart();
    asio::async_load(opened, {.tensors = {{"no such tensor"}}}, net::bind_executor(context, note));
    CHECK(test::run_to_end(context));
    CHECK(kinds == std::vector<errc>{errc::cancelled, errc::not_found});
    CHECK(tensors == 0);
  }
}

}  // namespace
}  // namespace headrace
