#include "raw_peer.hpp"

#include <headrace/coro/async_scope.hpp>
#include <headrace/coro/with.hpp>
#include <headrace/io/blocking_pool.hpp>
#include <headrace/io/file.hpp>
#include <headrace/io/io_context.hpp>
#include <headrace/io/socket.hpp>

#include <doctest/doctest.h>
#include <poll.h>
#include <support/checkpoint.hpp>
#include <sys/epoll.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

using namespace headrace;
using namespace std::chrono_literals;

namespace {

/// A host's event loop with a hosted loop in it: an epoll instance of its own that watches the
/// descriptor edge-triggered and is armed anew after each turn, as Asio does it.
class host {
 public:
  host()
      : loop({.backend = io_backend_from_environment().value(), .helpers = &helpers}),
        descriptor_(loop.host_descriptor()),
        epoll_(::epoll_create1(EPOLL_CLOEXEC)) {
    arm(EPOLL_CTL_ADD);
  }
  host(const host&) = delete;
  host& operator=(const host&) = delete;
  ~host() { ::close(epoll_); }

  /// Whether the loop asks for a turn that is not due by time.
  [[nodiscard]] bool readable() const {
    pollfd watched{.fd = descriptor_, .events = POLLIN, .revents = 0};
    return ::poll(&watched, 1, 0) > 0;
  }

  /// One turn after another for as long as the loop wants one at once.
  std::optional<steady_time> settle() {
    for (;;) {
      ++turns;
      const auto next = loop.poll();
      if (!next || *next > std::chrono::steady_clock::now()) return next;
    }
  }

  /// Serves the loop until `finished`; false where that takes longer than a minute. It gets a turn
  /// only where it has asked for one, so a lost wake-up is a failure.
  [[nodiscard]] bool serve_until(const bool& finished) {
    const auto limit = std::chrono::steady_clock::now() + 60s;
    while (!finished) {
      if (std::chrono::steady_clock::now() > limit) return false;
      const auto next = settle();
      if (finished) return true;
      arm(EPOLL_CTL_MOD);
      const auto until = next ? std::min(*next, limit) : limit;
      const auto left =
          std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
      epoll_event event{};
      const int most = static_cast<int>(std::max<std::int64_t>(0, left.count()));
      static_cast<void>(::epoll_wait(epoll_, &event, 1, most));
    }
    return true;
  }

  blocking_pool helpers{2};
  io_context loop;
  int turns = 0;

 private:
  void arm(int how) const {
    epoll_event event{.events = EPOLLIN | EPOLLET, .data = {}};
    REQUIRE(::epoll_ctl(epoll_, how, descriptor_, &event) == 0);
  }

  int descriptor_;
  int epoll_;
};

struct flag_item final : work_item {
  flag_item() noexcept : work_item(&set) {}
  static void set(work_item& item) noexcept { static_cast<flag_item&>(item).ran = true; }
  bool ran = false;
};

task<> echo(headrace::socket* near, std::size_t size, std::string* heard) {
  heard->assign(size, '\0');
  std::size_t have = 0;
  while (have < size) {
    const iovec buffer{heard->data() + have, size - have};
    auto received = co_await near->receive({&buffer, 1});
    const auto count = std::move(received).value();
    if (count == 0) break;
    have += count;
  }
  auto sent = co_await near->send_all(std::as_bytes(std::span(*heard)));
  std::move(sent).value();
}

task<> talk(io_context* loop, endpoint to, std::size_t size, int rounds, int* echoed,
            bool* finished) {
  auto near = headrace::socket::open(*loop, AF_INET).value();
  auto connected = co_await near.connect(to);
  std::move(connected).value();
  std::string heard;
  for (int round = 0; round < rounds; ++round) {
    co_await echo(&near, size, &heard);
    ++*echoed;
  }
  *finished = true;
}

task<> wait_for_ever(io_context* loop, endpoint to, errc* kind, bool* waiting, bool* finished) {
  auto near = headrace::socket::open(*loop, AF_INET).value();
  auto connected = co_await near.connect(to);
  std::move(connected).value();
  std::byte byte{};
  const iovec buffer{&byte, 1};
  *waiting = true;
  auto received = co_await near.receive({&buffer, 1});
  *kind = kind_of(received.error());
  *finished = true;
}

task<> pause(std::chrono::milliseconds duration, bool* finished) {
  co_await sleep_for(duration);
  *finished = true;
}

task<> read_all(io_context* loop, std::string path, std::string* content, bool* finished) {
  auto opened = co_await file::open(*loop, std::move(path));
  const file source = std::move(opened).value();
  content->assign(1000, '\0');
  const iovec buffer{content->data(), content->size()};
  auto read = co_await source.read(*loop, 0, {&buffer, 1});
  content->resize(std::move(read).value());
  *finished = true;
}

task<> count_idle_times(io_context* loop, int* count, bool* finished) {
  for (*count = 0; *count < 5; ++*count) co_await idle(*loop);
  *finished = true;
}

task<> stop_it(io_context* loop) {
  loop->stop();
  co_return;
}

}  // namespace

TEST_SUITE("unit") {
  TEST_CASE("a hosted loop with nothing to do asks for no turn") {
    host outer;
    CHECK(!outer.settle());
    CHECK(!outer.readable());
    CHECK(outer.loop.host_descriptor() == outer.loop.host_descriptor());
  }

  TEST_CASE("work posted between two turns, on the loop's thread, asks for a turn") {
    host outer;
    outer.settle();
    for (int round = 0; round < 3; ++round) {
      flag_item first;
      flag_item second;
      outer.loop.post(first);
      outer.loop.post(second);
      CHECK(!first.ran);
      CHECK(outer.readable());
      outer.settle();
      CHECK(first.ran);
      CHECK(second.ran);
      CHECK(!outer.readable());
    }
  }

  TEST_CASE("work posted before the loop had a host asks for a turn") {
    io_context loop({.backend = io_backend_from_environment().value()});
    flag_item item;
    loop.post(item);
    pollfd watched{.fd = loop.host_descriptor(), .events = POLLIN, .revents = 0};
    CHECK(::poll(&watched, 1, 0) == 1);
    static_cast<void>(loop.poll());
    CHECK(item.ran);
  }

  TEST_CASE("work posted from other threads is run, each wake-up of it") {
    host outer;
    constexpr int rounds = 2000;
    std::atomic<int> ran{0};
    bool finished = false;
    struct counting final : work_item {
      counting() noexcept : work_item(&count) {}
      static void count(work_item& item) noexcept {
        auto& self = static_cast<counting&>(item);
        if (self.total->fetch_add(1) + 1 == rounds) *self.finished = true;
      }
      std::atomic<int>* total = nullptr;
      bool* finished = nullptr;
    };
    std::vector<counting> items(rounds);
    std::jthread poster([&] {
      const auto limit = std::chrono::steady_clock::now() + 60s;
      for (int number = 0; number < rounds; ++number) {
        items[number].total = &ran;
        items[number].finished = &finished;
        outer.loop.post(items[number]);
        // Each one has to wake the host by itself now and then.
        while (number % 3 == 0 && ran.load() <= number && std::chrono::steady_clock::now() < limit)
          std::this_thread::yield();
      }
    });
    CHECK(outer.serve_until(finished));
    CHECK(ran == rounds);
  }

  TEST_CASE("operations are submitted by the turn that started them, and their ends are heard of") {
    host outer;
    const test::raw_listener listening;
    constexpr int rounds = 300;
    constexpr std::size_t size = 700;
    int echoed = 0;
    bool finished = false;
    async_scope scope;
    scope.spawn(outer.loop, talk(&outer.loop, listening.local(), size, rounds, &echoed, &finished));
    std::jthread far([&listening] {
      const auto peer = listening.accept();
      const std::string said(size, 'x');
      for (int round = 0; round < rounds; ++round) {
        peer.send(said);
        if (peer.receive(size) != said) return;
      }
    });
    CHECK(outer.serve_until(finished));
    CHECK(echoed == rounds);
  }

  TEST_CASE("many connections at once lose no completion") {
    host outer;
    const test::raw_listener listening;
    constexpr int connections = 40;
    constexpr std::size_t size = 100'000;
    int echoed = 0;
    std::vector<char> ended(connections);
    async_scope scope;
    bool finished = false;
    struct counter {
      static task<> run(io_context* loop, endpoint to, int* count, bool* all) {
        bool one = false;
        co_await talk(loop, to, size, 3, count, &one);
        if (*count == 3 * connections) *all = true;
      }
    };
    for (int number = 0; number < connections; ++number)
      scope.spawn(outer.loop, counter::run(&outer.loop, listening.local(), &echoed, &finished));
    std::jthread far([&listening] {
      std::vector<test::raw_peer> peers;
      for (int number = 0; number < connections; ++number) peers.push_back(listening.accept());
      const std::string said(size, 'y');
      for (int round = 0; round < 3; ++round) {
        for (const auto& peer : peers) peer.send(said);
        for (const auto& peer : peers) static_cast<void>(peer.receive(size));
      }
    });
    CHECK(outer.serve_until(finished));
    CHECK(echoed == 3 * connections);
  }

  TEST_CASE("a timer gives the time of the next turn") {
    host outer;
    bool finished = false;
    async_scope scope;
    scope.spawn(outer.loop, pause(1h, &finished));
    const auto next = outer.settle();
    REQUIRE(next);
    CHECK(*next > std::chrono::steady_clock::now() + 30min);
    CHECK(!outer.readable());
    scope.request_stop();
    CHECK(outer.readable());
    outer.settle();
    CHECK(scope.running() == 0);
    CHECK(!finished);

    async_scope another;
    another.spawn(outer.loop, pause(3ms, &finished));
    CHECK(outer.serve_until(finished));
  }

  TEST_CASE("a timer that is started between two turns asks for one") {
    host outer;
    outer.settle();
    struct noting final : timer_item {
      noting() noexcept : timer_item(&fire) {}
      static void fire(timer_item& item) noexcept { static_cast<noting&>(item).fired = true; }
      bool fired = false;
    } timer;
    outer.loop.start_timer(timer, outer.loop.now() + 2ms);
    CHECK(outer.readable());
    CHECK(outer.serve_until(timer.fired));
  }

  TEST_CASE("a stop from another thread reaches an operation of a hosted loop") {
    host outer;
    const test::raw_listener listening;
    errc kind{};
    bool waiting = false;
    bool finished = false;
    async_scope scope;
    scope.spawn(outer.loop,
                wait_for_ever(&outer.loop, listening.local(), &kind, &waiting, &finished));
    CHECK(outer.serve_until(waiting));
    outer.settle();
    std::jthread stopper([&scope] { scope.request_stop(); });
    CHECK(outer.serve_until(finished));
    CHECK(kind == errc::cancelled);
  }

  TEST_CASE("files are read on a hosted loop") {
    host outer;
    const test::temporary_directory place;
    place.write("some.txt", "some text");
    std::string content;
    bool finished = false;
    async_scope scope;
    scope.spawn(outer.loop, read_all(&outer.loop, place.path_of("some.txt"), &content, &finished));
    CHECK(outer.serve_until(finished));
    CHECK(content == "some text");
  }

  TEST_CASE("work for idle times is done piece by piece, a turn each") {
    host outer;
    int count = 0;
    bool finished = false;
    async_scope scope;
    scope.spawn(outer.loop, count_idle_times(&outer.loop, &count, &finished));
    outer.turns = 0;
    outer.settle();
    CHECK(finished);
    CHECK(count == 5);
    CHECK(outer.turns >= 5);
  }

  TEST_CASE("a hosted loop can be run to its end without its host") {
    host outer;
    const test::raw_listener listening;
    bool finished = false;
    errc kind{};
    bool waiting = false;
    async_scope scope;
    scope.spawn(outer.loop,
                wait_for_ever(&outer.loop, listening.local(), &kind, &waiting, &finished));
    CHECK(outer.serve_until(waiting));
    scope.request_stop();
    bool paused = false;
    async_scope ending;
    ending.spawn(outer.loop, pause(2ms, &paused));
    struct end {
      static task<> run(async_scope* both, async_scope* more, io_context* loop) {
        co_await both->join();
        co_await more->join();
        loop->stop();
      }
    };
    async_scope last;
    last.spawn(outer.loop, end::run(&scope, &ending, &outer.loop));
    outer.loop.run();
    CHECK(kind == errc::cancelled);
    CHECK(finished);
    CHECK(paused);
  }

  TEST_CASE("a stop is about run alone: turns go on") {
    host outer;
    async_scope scope;
    scope.spawn(outer.loop, stop_it(&outer.loop));
    outer.settle();
    flag_item item;
    outer.loop.post(item);
    outer.settle();
    CHECK(item.ran);
  }
}
