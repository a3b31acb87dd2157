#include <headrace/io/operation.hpp>

#include "io/engine.hpp"
#include "raw_peer.hpp"

#include <headrace/coro/async_scope.hpp>
#include <headrace/io/blocking_pool.hpp>
#include <headrace/io/socket.hpp>

#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <support/loop_thread.hpp>

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

using namespace headrace;
using namespace std::chrono_literals;

namespace {

/// Descriptors for operations that no public class offers.
struct watched {
  watched(io_context& owner, int number)
      : loop(owner), descriptor(std::make_unique<detail::descriptor>()) {
    descriptor->number = number;
  }
  watched(const watched&) = delete;
  watched& operator=(const watched&) = delete;
  ~watched() { loop.engine().release(std::move(descriptor)); }

  [[nodiscard]] io_operation<int> poll(unsigned events) {
    return {loop, descriptor.get(), detail::operation_kind::poll, {.events = events}};
  }

  io_context& loop;
  std::unique_ptr<detail::descriptor> descriptor;
};

std::array<int, 2> stream_pair() {
  std::array<int, 2> ends{};
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()) == 0);
  return ends;
}

task<int> poll_for(io_context* loop, int number, unsigned events, std::atomic<bool>* began) {
  watched target(*loop, number);
  began->store(true);
  auto ready = co_await target.poll(events);
  co_return std::move(ready).value();
}

task<errc> poll_kind(io_context* loop, int number, unsigned events) {
  watched target(*loop, number);
  auto ready = co_await target.poll(events);
  co_return ready ? errc{} : kind_of(ready.error());
}

/// One connection, and what a receive on it gave.
struct receiving {
  headrace::socket near;
  std::array<char, 64> memory{};
  std::size_t received = 0;
  int cancelled = 0;
  int ended = 0;
};

task<> receive_until_stopped(receiving* state) {
  for (;;) {
    const iovec buffer{state->memory.data(), state->memory.size()};
    auto received = co_await state->near.receive({&buffer, 1});
    if (!received) {
      CHECK(kind_of(received.error()) == errc::cancelled);
      ++state->cancelled;
      co_return;
    }
    if (*received == 0) {
      ++state->ended;
      co_return;
    }
    for (std::size_t at = 0; at < *received; ++at) CHECK(state->memory[at] == 'x');
    state->received += *received;
  }
}

task<std::size_t> drain(receiving* state) {
  state->cancelled = 0;
  co_await receive_until_stopped(state);
  co_return state->received;
}

task<> connect_near(io_context* loop, endpoint address, receiving* state) {
  state->near = headrace::socket::open(*loop, address.family()).value();
  auto connected = co_await state->near.connect(address);
  std::move(connected).value();
}

task<> drop(receiving* state) {
  state->near = {};
  co_return;
}

task<> join(async_scope* scope) { co_await scope->join(); }

task<> accept_until_stopped(acceptor* listening, std::atomic<int>* accepted, errc* ended) {
  for (;;) {
    auto next = co_await listening->accept();
    if (!next) {
      *ended = kind_of(next.error());
      co_return;
    }
    ++*accepted;
  }
}

struct accepting {
  std::unique_ptr<acceptor> listening;
  static task<endpoint> listen(io_context* loop, accepting* into) {
    into->listening = std::make_unique<acceptor>(acceptor::listen(*loop, test::loopback()).value());
    co_return into->listening->local();
  }
  static task<> drop(accepting* from) {
    from->listening.reset();
    co_return;
  }
};

task<> send_until_stopped(headrace::socket* to, std::size_t* sent, errc* ended) {
  const std::string text(1 << 16, 'x');
  const iovec buffer{const_cast<char*>(text.data()), text.size()};
  for (;;) {
    auto some = co_await to->send({&buffer, 1});
    if (!some) {
      *ended = kind_of(some.error());
      co_return;
    }
    *sent += *some;
  }
}

task<errc> connect_kind(io_context* loop, endpoint address) {
  auto opened = headrace::socket::open(*loop, address.family()).value();
  auto connected = co_await opened.connect(address);
  co_return connected ? errc{} : kind_of(connected.error());
}

/// A listener that takes no more connections: its queue is full and nobody accepts.
class full_listener {
 public:
  full_listener() : listener_(0) {
    const endpoint local = listener_.local();
    for (int at = 0; at < 16; ++at) {
      const int number = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
      REQUIRE(number >= 0);
      static_cast<void>(::connect(number, local.data(), local.size()));
      waiting_.emplace_back(number);
    }
  }
  [[nodiscard]] endpoint local() const { return listener_.local(); }

 private:
  test::raw_listener listener_;
  std::vector<test::raw_peer> waiting_;
};

void pause_a_little(int round) {
  const auto until =
      std::chrono::steady_clock::now() + std::chrono::microseconds((round * 7) % 120);
  while (std::chrono::steady_clock::now() < until) {
  }
}

}  // namespace

TEST_SUITE("unit") {
  TEST_CASE("a poll completes when there is something to read") {
    test::loop_thread loop;
    const auto ends = stream_pair();
    const test::raw_peer far(ends[1]);
    std::atomic<bool> began{false};
    std::thread sender([&] {
      while (!began) std::this_thread::yield();
      far.send("x");
    });
    CHECK((loop.run(poll_for(&loop.context(), ends[0], POLLIN, &began)) & POLLIN) != 0);
    sender.join();
  }

  TEST_CASE("a poll completes when there is room to write again") {
    test::loop_thread loop;
    const auto ends = stream_pair();
    const test::raw_peer far(ends[1]);
    const std::string block(1 << 16, 'x');
    while (::send(ends[0], block.data(), block.size(), MSG_NOSIGNAL | MSG_DONTWAIT) > 0) {
    }
    std::atomic<bool> began{false};
    std::thread reader([&] {
      while (!began) std::this_thread::yield();
      std::string into(1 << 16, '\0');
      const int number = far.native();
      while (::recv(number, into.data(), into.size(), MSG_DONTWAIT) > 0) {
      }
    });
    CHECK((loop.run(poll_for(&loop.context(), ends[0], POLLOUT, &began)) & POLLOUT) != 0);
    reader.join();
  }

  TEST_CASE("a poll ends with the far end, and with a stop") {
    test::loop_thread loop;
    std::atomic<bool> began{false};
    auto ends = stream_pair();
    std::thread closer([&] {
      test::raw_peer far(ends[1]);
      while (!began) std::this_thread::yield();
    });
    CHECK(loop.run(poll_for(&loop.context(), ends[0], POLLIN, &began)) != 0);
    closer.join();
    ends = stream_pair();
    const test::raw_peer far(ends[1]);
    std::stop_source source;
    source.request_stop();
    CHECK(loop.run(with_stop(source.get_token(), poll_kind(&loop.context(), ends[0], POLLIN))) ==
          errc::cancelled);
  }

  TEST_CASE("what cannot be watched is an error, not an exception") {
    test::loop_thread loop;
    CHECK(loop.run(poll_kind(&loop.context(), -1, POLLIN)) != errc{});
  }

  TEST_CASE("a stop before it begins leaves a receive unstarted") {
    test::loop_thread loop;
    const test::raw_listener listener;
    receiving state;
    loop.run(connect_near(&loop.context(), listener.local(), &state));
    auto far = listener.accept();
    far.send("x");
    async_scope scope;
    scope.request_stop();
    scope.spawn(loop.context(), receive_until_stopped(&state));
    sync_wait(join(&scope));
    CHECK(state.cancelled == 1);
    CHECK(state.received == 0);
    far.close();
    CHECK(loop.run(drain(&state)) == 1);
    loop.run(drop(&state));
  }

  TEST_CASE("a stop ends a receive that waits, and the connection goes on") {
    test::loop_thread loop;
    const test::raw_listener listener;
    receiving state;
    loop.run(connect_near(&loop.context(), listener.local(), &state));
    auto far = listener.accept();
    for (int round = 0; round < 200; ++round) {
      async_scope scope;
      scope.spawn(loop.context(), receive_until_stopped(&state));
      pause_a_little(round);
      scope.request_stop();
      sync_wait(join(&scope));
      CHECK(state.cancelled == round + 1);
    }
    far.send("xxx");
    far.close();
    CHECK(loop.run(drain(&state)) == 3);
    loop.run(drop(&state));
  }

  TEST_CASE("stops race with arriving bytes and not one byte is lost") {
    test::loop_thread loop;
    const test::raw_listener listener;
    receiving state;
    loop.run(connect_near(&loop.context(), listener.local(), &state));
    auto far = listener.accept();
    std::atomic<bool> enough{false};
    std::atomic<std::size_t> sent{0};
    std::thread sender([&] {
      while (!enough) {
        far.send("x");
        ++sent;
        while (!enough && !far.acknowledged()) std::this_thread::yield();
      }
    });
    for (int round = 0; round < 1000; ++round) {
      async_scope scope;
      scope.spawn(loop.context(), receive_until_stopped(&state));
      pause_a_little(round);
      scope.request_stop();
      sync_wait(join(&scope));
    }
    CHECK(state.cancelled == 1000);
    enough = true;
    sender.join();
    far.close();
    CHECK(loop.run(drain(&state)) == sent);
    loop.run(drop(&state));
  }

  TEST_CASE("stops race with the end of the stream") {
    test::loop_thread loop;
    const test::raw_listener listener;
    for (int round = 0; round < 300; ++round) {
      receiving state;
      loop.run(connect_near(&loop.context(), listener.local(), &state));
      auto far = listener.accept();
      async_scope scope;
      scope.spawn(loop.context(), receive_until_stopped(&state));
      std::thread closer([&far, round] {
        pause_a_little(round);
        if (round % 2 == 0) far.send("xx");
        far.close();
      });
      pause_a_little(round * 3);
      scope.request_stop();
      closer.join();
      sync_wait(join(&scope));
      CHECK(state.cancelled + state.ended == 1);
      loop.run(drop(&state));
    }
  }

  TEST_CASE("stops race with accepted connections and no descriptor is leaked") {
    test::loop_thread loop;
    accepting server;
    const endpoint local = loop.run(accepting::listen(&loop.context(), &server));
    const auto before = test::open_descriptors();
    std::atomic<int> accepted{0};
    for (int round = 0; round < 300; ++round) {
      errc ended{};
      async_scope scope;
      scope.spawn(loop.context(), accept_until_stopped(server.listening.get(), &accepted, &ended));
      const int number = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
      const test::raw_peer client(number);
      REQUIRE(::connect(number, local.data(), local.size()) == 0);
      pause_a_little(round);
      scope.request_stop();
      sync_wait(join(&scope));
      CHECK(ended == errc::cancelled);
    }
    CHECK(accepted > 0);
    CHECK(test::open_descriptors() == before);
    loop.run(accepting::drop(&server));
  }

  TEST_CASE("a stop ends a send that waits for room, and says what was taken before") {
    test::loop_thread loop;
    const test::raw_listener listener;
    receiving state;
    loop.run(connect_near(&loop.context(), listener.local(), &state));
    auto far = listener.accept();
    std::size_t sent = 0;
    for (int round = 0; round < 50; ++round) {
      errc ended{};
      async_scope scope;
      scope.spawn(loop.context(), send_until_stopped(&state.near, &sent, &ended));
      pause_a_little(round);
      scope.request_stop();
      sync_wait(join(&scope));
      CHECK(ended == errc::cancelled);
    }
    loop.run(drop(&state));
    CHECK(far.receive(sent + 1).size() == sent);
  }

  TEST_CASE("a stop ends a connect to a listener that answers nobody") {
    test::loop_thread loop;
    const full_listener full;
    for (int round = 0; round < 20; ++round) {
      std::stop_source source;
      std::thread stopper([&source, round] {
        pause_a_little(round);
        source.request_stop();
      });
      CHECK(loop.run(with_stop(source.get_token(), connect_kind(&loop.context(), full.local()))) ==
            errc::cancelled);
      stopper.join();
    }
  }

  TEST_CASE("stops race with connections that succeed") {
    test::loop_thread loop;
    const test::raw_listener listener(1024);
    int connected = 0;
    for (int round = 0; round < 300; ++round) {
      std::stop_source source;
      std::thread stopper([&source, round] {
        pause_a_little(round);
        source.request_stop();
      });
      const errc kind =
          loop.run(with_stop(source.get_token(), connect_kind(&loop.context(), listener.local())));
      CHECK((kind == errc::cancelled || kind == errc{}));
      if (kind == errc{}) ++connected;
      stopper.join();
    }
    CHECK(connected <= 300);
  }

  TEST_CASE("one stop ends very many operations at once, more than a ring holds") {
    test::loop_thread loop;
    const test::raw_listener listener(4096);
    std::vector<std::unique_ptr<receiving>> all;
    std::vector<test::raw_peer> far;
    constexpr int count = 2000;
    for (int at = 0; at < count; ++at) {
      all.push_back(std::make_unique<receiving>());
      loop.run(connect_near(&loop.context(), listener.local(), all.back().get()));
      far.push_back(listener.accept());
    }
    async_scope scope;
    for (auto& each : all) scope.spawn(loop.context(), receive_until_stopped(each.get()));
    scope.request_stop();
    sync_wait(join(&scope));
    int cancelled = 0;
    for (auto& each : all) cancelled += each->cancelled;
    CHECK(cancelled == count);
    // And all of them complete at once, too.
    async_scope again;
    for (auto& each : all) again.spawn(loop.context(), receive_until_stopped(each.get()));
    for (auto& each : far) {
      each.send("x");
      each.close();
    }
    sync_wait(join(&again));
    int ended = 0;
    for (auto& each : all) {
      ended += each->ended;
      loop.run(drop(each.get()));
    }
    CHECK(ended == count);
  }
}
