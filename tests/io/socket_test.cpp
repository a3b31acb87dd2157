#include <headrace/io/socket.hpp>

#include "raw_peer.hpp"

#include <headrace/base/error.hpp>
#include <headrace/coro/async_scope.hpp>
#include <headrace/coro/when.hpp>

#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <support/loop_thread.hpp>
#include <sys/resource.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

using namespace headrace;
using namespace std::chrono_literals;

namespace {

struct pair {
  headrace::socket near;
  headrace::socket far;
};

task<io_result<headrace::socket>> connect_to(io_context* loop, endpoint address) {
  auto opened = headrace::socket::open(*loop, address.family());
  if (!opened) co_return failure{opened.error()};
  auto connected = co_await opened->connect(address);
  if (!connected) co_return failure{connected.error()};
  co_return std::move(*opened);
}

task<> connect_into(io_context* loop, endpoint address, headrace::socket* into) {
  auto connected = co_await connect_to(loop, address);
  *into = std::move(connected).value();
}

task<pair> make_pair(io_context* loop, const char* host) {
  auto listening = acceptor::listen(*loop, *endpoint::from_literal(host, 0)).value();
  pair made;
  async_scope scope;
  scope.spawn(*loop, connect_into(loop, listening.local(), &made.near));
  auto accepted = co_await listening.accept();
  made.far = std::move(accepted).value();
  co_await scope.join();
  co_return made;
}

task<std::string> receive_some(headrace::socket* from, std::size_t size) {
  std::string bytes(size, '\0');
  const iovec buffer{bytes.data(), bytes.size()};
  auto received = co_await from->receive({&buffer, 1});
  const auto count = std::move(received).value();
  bytes.resize(count);
  co_return bytes;
}

task<std::string> receive_to_end(headrace::socket* from, std::size_t slice) {
  std::string all;
  for (;;) {
    const auto some = co_await receive_some(from, slice);
    if (some.empty()) co_return all;
    all += some;
  }
}

task<> send_text(headrace::socket* to, std::string text) {
  auto sent = co_await to->send_all(std::as_bytes(std::span(text)));
  std::move(sent).value();
}

task<> echo_both_ways(io_context* loop, const char* host) {
  auto both = co_await make_pair(loop, host);
  co_await send_text(&both.near, "ping");
  const auto heard = co_await receive_some(&both.far, 100);
  CHECK(heard == "ping");
  co_await send_text(&both.far, "pong");
  const auto answer = co_await receive_some(&both.near, 100);
  CHECK(answer == "pong");
  // Half closed: one way has ended, the other has not.
  both.near.shutdown_send();
  const auto end = co_await receive_some(&both.far, 100);
  CHECK(end.empty());
  const auto end_again = co_await receive_some(&both.far, 100);
  CHECK(end_again.empty());
  co_await send_text(&both.far, "still");
  const auto late = co_await receive_some(&both.near, 100);
  CHECK(late == "still");
  both.far.shutdown();
  const auto other_end = co_await receive_some(&both.near, 100);
  CHECK(other_end.empty());
}

std::vector<std::byte> random_bytes(std::size_t size, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> bytes(size);
  for (std::size_t at = 0; at + 8 <= size; at += 8) {
    const std::uint64_t word = random();
    std::memcpy(bytes.data() + at, &word, sizeof word);
  }
  return bytes;
}

/// Receives exactly into `into`, cut into `pieces` vectors of uneven sizes, over and over from
/// where the last one ended.
task<> receive_scattered(headrace::socket* from, std::span<std::byte> into, std::size_t pieces,
                         std::uint64_t seed) {
  std::mt19937_64 random(seed);
  while (!into.empty()) {
    std::vector<iovec> vectors;
    std::size_t planned = 0;
    const std::size_t most = std::max<std::size_t>(1, 2 * (std::size_t{4} << 20) / pieces);
    while (vectors.size() < pieces && planned < into.size()) {
      const auto size = std::min<std::size_t>(1 + random() % most, into.size() - planned);
      vectors.push_back(as_buffer(into.subspan(planned, size)));
      planned += size;
    }
    auto received = co_await from->receive(vectors);
    const auto count = std::move(received).value();
    REQUIRE(count > 0);
    REQUIRE(count <= planned);
    into = into.subspan(count);
  }
}

task<> send_bytes(headrace::socket* to, std::span<const std::byte> bytes) {
  auto sent = co_await to->send_all(bytes);
  std::move(sent).value();
  to->shutdown_send();
}

task<> transfer_big(io_context* loop, std::size_t size, std::size_t pieces) {
  auto both = co_await make_pair(loop, "127.0.0.1");
  const auto sent = random_bytes(size, pieces);
  std::vector<std::byte> received(size);
  async_scope scope;
  scope.spawn(*loop, send_bytes(&both.near, sent));
  scope.spawn(*loop, receive_scattered(&both.far, received, pieces, 7));
  co_await scope.join();
  CHECK(std::memcmp(sent.data(), received.data(), size) == 0);
  const auto end = co_await receive_some(&both.far, 1);
  CHECK(end.empty());
}

task<> both_ways_at_once(io_context* loop) {
  auto both = co_await make_pair(loop, "127.0.0.1");
  constexpr std::size_t size = std::size_t{8} << 20;
  const auto there = random_bytes(size, 1);
  const auto back = random_bytes(size, 2);
  std::vector<std::byte> got_there(size);
  std::vector<std::byte> got_back(size);
  async_scope scope;
  scope.spawn(*loop, send_bytes(&both.near, there));
  scope.spawn(*loop, send_bytes(&both.far, back));
  scope.spawn(*loop, receive_scattered(&both.far, got_there, 3, 1));
  scope.spawn(*loop, receive_scattered(&both.near, got_back, 3, 2));
  co_await scope.join();
  CHECK(there == got_there);
  CHECK(back == got_back);
}

task<> ask_one(io_context* loop, endpoint address, int number, int* answered) {
  auto connected = co_await connect_to(loop, address);
  auto to = std::move(connected).value();
  std::string text;
  for (int at = 0; at <= number % 50; ++at) text += static_cast<char>('a' + at % 26);
  co_await send_text(&to, text);
  to.shutdown_send();
  const auto answer = co_await receive_to_end(&to, 1000);
  CHECK(answer == text);
  ++*answered;
}

task<int> many_connections(io_context* loop, int count) {
  auto listening = acceptor::listen(*loop, test::loopback()).value();
  int answered = 0;
  async_scope scope;
  for (int number = 0; number < count; ++number)
    scope.spawn(*loop, ask_one(loop, listening.local(), number, &answered));
  for (int number = 0; number < count; ++number) {
    auto accepted = co_await listening.accept();
    struct echo {
      static task<> run(headrace::socket from) {
        const auto heard = co_await receive_to_end(&from, 7);
        co_await send_text(&from, heard);
      }
    };
    scope.spawn(*loop, echo::run(std::move(accepted).value()));
  }
  co_await scope.join();
  co_return answered;
}

task<errc> connect_kind(io_context* loop, endpoint address) {
  auto connected = co_await connect_to(loop, address);
  co_return connected ? errc{} : kind_of(connected.error());
}

/// Errors of receiving as a kind, counts as none.
task<errc> receive_kind(headrace::socket* from) {
  std::array<char, 16> bytes{};
  const iovec buffer{bytes.data(), bytes.size()};
  auto received = co_await from->receive({&buffer, 1});
  co_return received ? errc{} : kind_of(received.error());
}

task<errc> send_until_it_fails(headrace::socket* to) {
  const std::string text(1000, 'x');
  for (;;) {
    auto sent = co_await to->send_all(std::as_bytes(std::span(text)));
    if (!sent) co_return kind_of(sent.error());
  }
}

task<headrace::socket> connect_or_throw(io_context* loop, endpoint address) {
  auto connected = co_await connect_to(loop, address);
  co_return std::move(connected).value();
}

/// A connection whose far end is the test's own thread.
struct to_raw {
  test::loop_thread loop;
  test::raw_listener listener;
  headrace::socket near = loop.run(connect_or_throw(&loop.context(), listener.local()));
  test::raw_peer far = listener.accept();

  ~to_raw() { loop.run(drop(std::move(near))); }
  // The socket belongs to the loop's thread, its end included.
  static task<> drop([[maybe_unused]] headrace::socket dropped) {
    const headrace::socket here = std::move(dropped);
    co_return;
  }
};

task<> receive_into(headrace::socket* from, std::size_t slice, std::atomic<std::size_t>* count,
                    std::string* all, bool* ended) {
  for (;;) {
    const auto some = co_await receive_some(from, slice);
    if (some.empty()) break;
    *all += some;
    count->store(all->size(), std::memory_order_release);
  }
  *ended = true;
}

task<int> nonblocking_flag(io_context* loop, int descriptor) {
  auto adopted = headrace::socket::adopt(*loop, descriptor);
  const int flags = ::fcntl(adopted.native(), F_GETFL);
  co_return flags& O_NONBLOCK;
}

task<std::string> adopt_and_receive(io_context* loop, int descriptor) {
  auto adopted = headrace::socket::adopt(*loop, descriptor);
  auto received = co_await receive_some(&adopted, 10);
  co_return received;
}

task<> refuse_then_accept(io_context* loop, bool* refused) {
  auto listening = acceptor::listen(*loop, test::loopback()).value();
  // A connection waits to be accepted, and no descriptor is left for it.
  const int client = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const test::raw_peer far(client);
  const endpoint local = listening.local();
  REQUIRE(::connect(client, local.data(), local.size()) == 0);
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  rlimit none = before;
  none.rlim_cur = 3;
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
  auto accepted = co_await listening.accept();
  auto opened = headrace::socket::open(*loop, AF_INET);
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &before) == 0);
  CHECK(!accepted);
  CHECK(!opened);
  *refused = !accepted && accepted.error() == std::error_code(EMFILE, std::system_category());
  auto again = co_await listening.accept();
  CHECK(again);
}

task<> close_while_events_wait(io_context* loop, int count) {
  // All become readable, and one closes the others while the events of the same round still name
  // them.
  std::vector<pair> pairs;
  for (int at = 0; at < count; ++at) {
    auto made = co_await make_pair(loop, "127.0.0.1");
    pairs.push_back(std::move(made));
  }
  for (auto& each : pairs) {
    // Watched from now on.
    co_await send_text(&each.near, "x");
    const auto heard = co_await receive_some(&each.far, 10);
    CHECK(heard == "x");
  }
  for (auto& each : pairs) {
    const std::byte byte{};
    CHECK(::send(each.near.native(), &byte, 1, MSG_NOSIGNAL) == 1);
  }
  const auto heard = co_await receive_some(&pairs[0].far, 10);
  CHECK(heard.size() == 1);
  for (std::size_t at = 1; at < pairs.size(); ++at) {
    pairs[at].far = {};
    pairs[at].near = {};
  }
  // Numbers are used again at once.
  auto next = co_await make_pair(loop, "127.0.0.1");
  co_await send_text(&next.near, "again");
  const auto again = co_await receive_some(&next.far, 10);
  CHECK(again == "again");
}

task<> join(async_scope* scope) { co_await scope->join(); }

task<> drop_at_once(headrace::socket* dropped) {
  *dropped = {};
  co_return;
}

}  // namespace

TEST_SUITE("unit") {
  TEST_CASE("two sockets talk both ways, half closed too, over IPv4 and IPv6") {
    test::loop_thread loop;
    loop.run(echo_both_ways(&loop.context(), "127.0.0.1"));
    const int six = ::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const test::raw_peer probe(six);
    const endpoint address = *endpoint::from_literal("::1", 0);
    if (six >= 0 && ::bind(six, address.data(), address.size()) == 0) {
      loop.run(echo_both_ways(&loop.context(), "::1"));
    }
  }

  TEST_CASE("64 MiB arrive unchanged, scattered over one, a few and the most vectors") {
    test::loop_thread loop;
    loop.run(transfer_big(&loop.context(), std::size_t{64} << 20, 1));
    loop.run(transfer_big(&loop.context(), std::size_t{16} << 20, 5));
    loop.run(transfer_big(&loop.context(), std::size_t{16} << 20, max_buffers));
  }

  TEST_CASE("one socket sends and receives at once") {
    test::loop_thread loop;
    loop.run(both_ways_at_once(&loop.context()));
  }

  TEST_CASE("many connections at once") {
    test::loop_thread loop;
    CHECK(loop.run(many_connections(&loop.context(), 300)) == 300);
  }

  TEST_CASE("a refused connection is a connect_error") {
    test::loop_thread loop;
    endpoint nobody;
    {
      const test::raw_listener closed;
      nobody = closed.local();
    }
    CHECK(loop.run(connect_kind(&loop.context(), nobody)) == errc::connect_error);
  }

  TEST_CASE("a family that a connection cannot have is an error, not an exception") {
    test::loop_thread loop;
    CHECK(loop.run(connect_kind(&loop.context(), endpoint())) == errc::unsupported);
  }

  TEST_CASE("a reset ends a receive that waits, and one that begins later") {
    to_raw connection;
    std::thread resetter([&connection] { connection.far.reset(); });
    CHECK(connection.loop.run(receive_kind(&connection.near)) == errc::connect_error);
    resetter.join();
    // The error was reported; what follows is the end.
    CHECK(connection.loop.run(receive_kind(&connection.near)) == errc{});
  }

  TEST_CASE("bytes that came before a reset or are sent after it make errors, and no signal") {
    to_raw connection;
    connection.far.reset();
    CHECK(connection.loop.run(send_until_it_fails(&connection.near)) == errc::connect_error);
    CHECK(connection.loop.run(send_until_it_fails(&connection.near)) == errc::connect_error);
  }

  TEST_CASE("the end of the stream is seen wherever it falls") {
    for (const std::size_t size : {0, 1, 3, 4, 5, 8}) {
      for (const std::size_t slice : {1, 4, 16}) {
        for (int order = 0; order < 4; ++order) {
          CAPTURE(size);
          CAPTURE(slice);
          CAPTURE(order);
          to_raw connection;
          const std::string text = std::string("abcdefgh").substr(0, size);
          std::string all;
          std::atomic<std::size_t> count{0};
          bool ended = false;
          async_scope scope;
          const auto begin = [&] {
            scope.spawn(connection.loop.context(),
                        receive_into(&connection.near, slice, &count, &all, &ended));
          };
          const auto arrived = [&] {
            while (count.load(std::memory_order_acquire) < text.size()) std::this_thread::yield();
          };
          switch (order) {
            case 0:  // data and end are there before anybody looks
              connection.far.send(text);
              connection.far.shutdown_send();
              begin();
              break;
            case 1:  // the receive waits; data, then the end at once
              begin();
              connection.far.send(text);
              connection.far.shutdown_send();
              break;
            case 2:  // the end comes only after the data were taken
              begin();
              connection.far.send(text);
              arrived();
              connection.far.shutdown_send();
              break;
            default:  // data are there before, the end comes later
              connection.far.send(text);
              begin();
              arrived();
              connection.far.shutdown_send();
              break;
          }
          sync_wait(join(&scope));
          CHECK(ended);
          CHECK(all == text);
        }
      }
    }
  }

  TEST_CASE("single bytes and ends race with receives and nothing is missed") {
    for (int round = 0; round < 40; ++round) {
      to_raw connection;
      std::string text;
      for (int at = 0; at < 200; ++at) text += static_cast<char>('a' + at % 26);
      std::thread sender([&] {
        for (const char& each : text) connection.far.send({&each, 1});
        connection.far.shutdown_send();
      });
      CHECK(connection.loop.run(receive_to_end(&connection.near, round % 2 == 0 ? 3 : 4096)) ==
            text);
      sender.join();
    }
  }

  TEST_CASE("urgent data in the middle does not hide what follows") {
    for (int round = 0; round < 20; ++round) {
      to_raw connection;
      std::string all;
      std::atomic<std::size_t> count{0};
      bool ended = false;
      async_scope scope;
      if (round % 2 == 0) {
        scope.spawn(connection.loop.context(),
                    receive_into(&connection.near, 64, &count, &all, &ended));
      }
      connection.far.send("ab");
      connection.far.send("!", MSG_OOB);
      connection.far.send("cd");
      if (round % 2 == 1) {
        scope.spawn(connection.loop.context(),
                    receive_into(&connection.near, 64, &count, &all, &ended));
      }
      // Without an end, which would be an event of its own.
      while (count.load(std::memory_order_acquire) < 4) std::this_thread::yield();
      connection.far.shutdown_send();
      sync_wait(join(&scope));
      CHECK(all == "abcd");
    }
  }

  TEST_CASE("a socket may be adopted whether it blocks or not") {
    test::loop_thread loop;
    for (const int flags : {0, static_cast<int>(SOCK_NONBLOCK)}) {
      std::array<int, 2> ends{};
      REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | flags, 0, ends.data()) == 0);
      test::raw_peer far(ends[1]);
      std::thread sender([&far] { far.send("hello"); });
      CHECK(loop.run(adopt_and_receive(&loop.context(), ends[0])) == "hello");
      sender.join();
    }
    for (const int flags : {0, static_cast<int>(SOCK_NONBLOCK)}) {
      const int made = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | flags, 0);
      CHECK((loop.run(nonblocking_flag(&loop.context(), made)) != 0) ==
            (loop.context().backend() == io_backend::epoll));
    }
  }

  TEST_CASE("no descriptor left is an error of accept and of open, and passes") {
    test::loop_thread loop;
    bool refused = false;
    loop.run(refuse_then_accept(&loop.context(), &refused));
    CHECK(refused);
  }

  TEST_CASE("sockets are closed while events still name them") {
    test::loop_thread loop;
    loop.run(close_while_events_wait(&loop.context(), 20));
  }

  TEST_CASE("a socket that a forked child still holds raises no events after it was closed") {
    to_raw connection;
    std::thread sender([&connection] { connection.far.send("x"); });
    CHECK(connection.loop.run(receive_some(&connection.near, 10)) == "x");
    sender.join();
    std::array<int, 2> hold{};
    REQUIRE(::pipe2(hold.data(), O_CLOEXEC) == 0);
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      char byte = 0;
      ::close(hold[1]);
      static_cast<void>(!::read(hold[0], &byte, 1));
      ::_exit(0);
    }
    connection.loop.run(drop_at_once(&connection.near));
    for (int at = 0; at < 10; ++at) {
      connection.far.send("y");
      connection.loop.run(many_connections(&connection.loop.context(), 1));
    }
    ::close(hold[0]);
    ::close(hold[1]);
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
  }

  TEST_CASE("no descriptor is leaked") {
    {
      // Whatever a first use opens for good.
      test::loop_thread loop;
      loop.run(echo_both_ways(&loop.context(), "127.0.0.1"));
    }
    const auto before = test::open_descriptors();
    {
      test::loop_thread loop;
      CHECK(loop.run(many_connections(&loop.context(), 20)) == 20);
      loop.run(close_while_events_wait(&loop.context(), 5));
    }
    CHECK(test::open_descriptors() == before);
  }
}
