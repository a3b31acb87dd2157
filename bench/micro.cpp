// What the pieces cost, each alone: the `micro` comparison of `./run bench`, on google-benchmark.
//
//     micro [--benchmark_filter=REGEX] [--benchmark_format=json] …

#include <headrace/asio.hpp>
#include <headrace/io/socket.hpp>

#include <benchmark/benchmark.h>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace {

namespace net = boost::asio;
using headrace::async_generator;
using headrace::io_backend;
using headrace::task;

// ---- Coroutines ----

task<int> give(int value) { co_return value; }

task<void> await_again_and_again(benchmark::State* state) {
  int value = 0;
  for (auto _ : *state) value += co_await give(1);
  benchmark::DoNotOptimize(value);
}

/// A task that is called, finishes and resumes its awaiter.
void coroutine_switch(benchmark::State& state) {
  headrace::sync_wait(await_again_and_again(&state));
}
BENCHMARK(coroutine_switch);

task<void> send_for_ever(headrace::channel<int>* into) {
  for (;;) {
    const bool sent = co_await into->send(1);
    if (!sent) co_return;
  }
}

task<void> receive_again_and_again(benchmark::State* state, headrace::channel<int>* from) {
  for (auto _ : *state) {
    auto received = co_await from->receive();
    benchmark::DoNotOptimize(received);
  }
  from->close();
}

task<void> send_and_receive(benchmark::State* state) {
  headrace::channel<int> between(1);
  std::vector<task<void>> both;
  both.push_back(send_for_ever(&between));
  both.push_back(receive_again_and_again(state, &between));
  co_await headrace::when_all(std::move(both));
}

/// One value from one coroutine to another, through a channel of one, on one thread.
void channel_hop(benchmark::State& state) { headrace::sync_wait(send_and_receive(&state)); }
BENCHMARK(channel_hop);

// ---- The loop ----

task<void> echo(headrace::socket* far) {
  std::byte byte{};
  const iovec buffer{&byte, 1};
  for (;;) {
    auto received = co_await far->receive({&buffer, 1});
    if (!received || *received == 0) co_return;
    auto sent = co_await far->send_all({&byte, 1});
    if (!sent) co_return;
  }
}

task<void> ask_again_and_again(benchmark::State* state, headrace::socket near) {
  std::byte byte{};
  const iovec buffer{&byte, 1};
  for (auto _ : *state) {
    auto sent = co_await near.send_all({&byte, 1});
    std::move(sent).value();
    auto received = co_await near.receive({&buffer, 1});
    benchmark::DoNotOptimize(std::move(received).value());
  }
}

task<void> talk(benchmark::State* state, headrace::io_context* loop) {
  auto listening =
      headrace::acceptor::listen(*loop, *headrace::endpoint::from_literal("127.0.0.1", 0)).value();
  auto near = headrace::socket::open(*loop, AF_INET).value();
  const headrace::endpoint address = listening.local();
  auto connected = co_await near.connect(address);
  std::move(connected).value();
  auto accepted = co_await listening.accept();
  auto far = std::move(accepted).value();
  headrace::async_scope scope;
  scope.spawn(*loop, echo(&far));
  co_await ask_again_and_again(state, std::move(near));
  co_await scope.join();
}

task<void> run_and_stop(task<void> work, headrace::io_context* loop, std::exception_ptr* failure) {
  try {
    co_await std::move(work);
  } catch (...) {
    *failure = std::current_exception();
  }
  loop->stop();
}

/// One byte to a socket of the same loop and back: two sends and two receives.
void round_trip(benchmark::State& state, io_backend backend) {
  std::optional<headrace::io_context> loop;
  try {
    loop.emplace(headrace::io_context::options{.backend = backend});
  } catch (const headrace::error& refused) {
    state.SkipWithError(refused.what());
    return;
  }
  std::exception_ptr failure;
  headrace::async_scope scope;
  scope.spawn(*loop, run_and_stop(talk(&state, &*loop), &*loop, &failure));
  loop->run();
  if (failure) std::rethrow_exception(failure);
}
BENCHMARK_CAPTURE(round_trip, uring, io_backend::uring);
BENCHMARK_CAPTURE(round_trip, epoll, io_backend::epoll);

// ---- Headers ----

std::vector<std::byte> header_of(int tensors) {
  std::string text = "{";
  for (int number = 0; number < tensors; ++number) {
    const int begin = 8192 * number;
    text += "\"model.layers." + std::to_string(number) +
            ".self_attn.q_proj.weight\":{\"dtype\":\"BF16\",\"shape\":[64,64],\"data_offsets\":[" +
            std::to_string(begin) + "," + std::to_string(begin + 8192) + "]},";
  }
  text.back() = '}';
  std::vector<std::byte> bytes(8 + text.size());
  const std::uint64_t length = text.size();
  std::memcpy(bytes.data(), &length, sizeof length);
  std::memcpy(bytes.data() + 8, text.data(), text.size());
  return bytes;
}

/// The header of a file, 338 tensors: those of Qwen2-1.5B.
void header_parse(benchmark::State& state) {
  constexpr int tensors = 338;
  const auto bytes = header_of(tensors);
  for (auto _ : state) {
    auto parsed = headrace::parse_header(bytes, bytes.size() + 8192 * tensors);
    if (!parsed) state.SkipWithError(parsed.error().what());
    benchmark::DoNotOptimize(parsed);
  }
}
BENCHMARK(header_parse);

// ---- Completion tokens ----

/// Values that are ready, as the tensors of a batch are.
async_generator<int> ready_values() {
  for (int value = 0;; ++value) co_yield value;
}

task<void> take_again_and_again(benchmark::State* state) {
  auto values = ready_values();
  for (auto _ : *state) {
    auto* const value = co_await values.next();
    benchmark::DoNotOptimize(value);
  }
}

void next(benchmark::State& state) { headrace::sync_wait(take_again_and_again(&state)); }
BENCHMARK(next);

net::awaitable<void> await_again_and_again(benchmark::State& state) {
  auto values = ready_values();
  for (auto _ : state) {
    auto* const value = co_await headrace::asio::async_next(values, net::use_awaitable);
    benchmark::DoNotOptimize(value);
  }
}

void async_next_awaitable(benchmark::State& state) {
  net::io_context context(1);
  net::co_spawn(context, await_again_and_again(state), net::detached);
  context.run();
}
BENCHMARK(async_next_awaitable);

void async_next_callback(benchmark::State& state) {
  net::io_context context(1);
  auto values = ready_values();
  for (auto _ : state) {
    headrace::asio::async_next(values,
                               net::bind_executor(context, [](std::exception_ptr, int* value) {
                                 benchmark::DoNotOptimize(value);
                               }));
    context.run();
    context.restart();
  }
}
BENCHMARK(async_next_callback);

}  // namespace

BENCHMARK_MAIN();
