#include <headrace/io/io_context.hpp>

#include "raw_peer.hpp"

#include <headrace/base/log.hpp>
#include <headrace/coro/async_scope.hpp>
#include <headrace/io/socket.hpp>

#include <doctest/doctest.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <support/loop_thread.hpp>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

using namespace headrace;
using namespace std::chrono_literals;

namespace {

io_backend wanted() { return io_backend_from_environment().value(); }

struct counting_item final : work_item {
  explicit counting_item(std::atomic<int>* given) noexcept : work_item(&run_it), count(given) {}
  static void run_it(work_item& item) noexcept {
    const std::unique_ptr<counting_item> self(static_cast<counting_item*>(&item));
    ++*self->count;
  }
  std::atomic<int>* count;
};

struct noting_item final : work_item {
  noting_item(std::vector<int>* into, int given) noexcept
      : work_item(&note), order(into), number(given) {}
  static void note(work_item& item) noexcept {
    auto& self = static_cast<noting_item&>(item);
    self.order->push_back(self.number);
  }
  std::vector<int>* order;
  int number;
};

/// Posts itself again and again; the loop must not forget everything else over it.
struct endless_item final : work_item {
  explicit endless_item(io_context& owner) noexcept : work_item(&again), loop(owner) {}
  static void again(work_item& item) noexcept {
    auto& self = static_cast<endless_item&>(item);
    ++self.rounds;
    if (!self.ended) self.loop.post(self);
  }
  io_context& loop;
  std::uint64_t rounds = 0;
  bool ended = false;
};

task<> sleep_with(endless_item* item, std::chrono::milliseconds pause) {
  co_await sleep_for(pause);
  item->ended = true;
}

task<> pause_and_note(std::vector<int>* order, int number, std::chrono::milliseconds pause) {
  co_await sleep_for(pause);
  order->push_back(number);
}

task<> pauses_in_order(io_context* loop, std::vector<int>* order) {
  async_scope scope;
  scope.spawn(*loop, pause_and_note(order, 3, 25ms));
  scope.spawn(*loop, pause_and_note(order, 2, 12ms));
  scope.spawn(*loop, pause_and_note(order, 1, 1ms));
  scope.spawn(*loop, pause_and_note(order, 0, 0ms));
  co_await scope.join();
}

task<bool> sleep_is_never_short(std::chrono::microseconds pause) {
  const auto began = std::chrono::steady_clock::now();
  co_await sleep_for(pause);
  co_return std::chrono::steady_clock::now() - began >= pause;
}

task<> note_when_idle(io_context* loop, std::vector<int>* order, int number) {
  co_await idle(*loop);
  order->push_back(number);
}

task<> note_posted(std::vector<int>* order, int number) {
  order->push_back(number);
  co_return;
}

task<> idle_and_posted(io_context* loop, std::vector<int>* order) {
  async_scope scope;
  scope.spawn(*loop, note_when_idle(loop, order, 2));
  scope.spawn(*loop, note_when_idle(loop, order, 3));
  scope.spawn(*loop, note_posted(order, 0));
  scope.spawn(*loop, note_posted(order, 1));
  co_await scope.join();
}

task<> end_when_idle(io_context* loop, endless_item* item) {
  co_await idle(*loop);
  item->ended = true;
}

task<std::thread::id> here() { co_return std::this_thread::get_id(); }

task<> stop_it(io_context* loop) {
  loop->stop();
  co_return;
}

task<std::string> exchange(io_context* loop) {
  auto listening = acceptor::listen(*loop, test::loopback()).value();
  auto near = headrace::socket::open(*loop, AF_INET).value();
  const endpoint address = listening.local();
  auto connected = co_await near.connect(address);
  std::move(connected).value();
  auto accepted = co_await listening.accept();
  auto far = std::move(accepted).value();
  const std::string text = "hello";
  auto sent = co_await near.send_all(std::as_bytes(std::span(text)));
  std::move(sent).value();
  std::string heard(10, '\0');
  const iovec buffer{heard.data(), heard.size()};
  auto received = co_await far.receive({&buffer, 1});
  heard.resize(std::move(received).value());
  co_return heard;
}

#if defined(__x86_64__)
constexpr unsigned this_architecture = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr unsigned this_architecture = AUDIT_ARCH_AARCH64;
#else
constexpr unsigned this_architecture = 0;
#endif

/// As the default profiles of container runtimes do it: io_uring_setup fails, all else goes on.
bool refuse_io_uring(unsigned error_number) noexcept {
  std::array<sock_filter, 6> program = {{
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, arch)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, this_architecture, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (error_number & SECCOMP_RET_DATA)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  }};
  const sock_fprog filter{.len = program.size(), .filter = program.data()};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

constexpr int no_filter_here = 77;

/// Runs this program again under the filter, with the one test case; gives its exit status.
int run_refused(unsigned error_number, const char* backend, const char* test_case) {
  const std::string chosen = std::string("--test-case=") + test_case;
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    if (!refuse_io_uring(error_number)) ::_exit(no_filter_here);
    ::setenv("HEADRACE_IO", backend, 1);
    ::execl("/proc/self/exe", "test_io", chosen.c_str(), "--no-skip", "--minimal",
            static_cast<char*>(nullptr));
    ::_exit(126);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace

TEST_SUITE("unit") {
  TEST_CASE("the environment names the backend") {
    const char* const given = std::getenv("HEADRACE_IO");
    const std::optional<std::string> before =
        given != nullptr ? std::optional<std::string>(given) : std::nullopt;
    ::setenv("HEADRACE_IO", "epoll", 1);
    CHECK(io_backend_from_environment().value() == io_backend::epoll);
    ::setenv("HEADRACE_IO", "uring", 1);
    CHECK(io_backend_from_environment().value() == io_backend::uring);
    ::setenv("HEADRACE_IO", "auto", 1);
    CHECK(io_backend_from_environment().value() == io_backend::automatic);
    ::setenv("HEADRACE_IO", "", 1);
    CHECK(io_backend_from_environment().value() == io_backend::automatic);
    ::setenv("HEADRACE_IO", "kqueue", 1);
    const auto refused = io_backend_from_environment();
    REQUIRE(!refused);
    CHECK(refused.error().kind() == errc::invalid_request);
    CHECK(refused.error().message().find("kqueue") != std::string::npos);
    ::unsetenv("HEADRACE_IO");
    CHECK(io_backend_from_environment().value() == io_backend::automatic);
    if (before) ::setenv("HEADRACE_IO", before->c_str(), 1);
    CHECK(to_string(io_backend::automatic) == "auto");
    CHECK(to_string(io_backend::uring) == "uring");
    CHECK(to_string(io_backend::epoll) == "epoll");
  }

  TEST_CASE("a loop has the backend that was asked for") {
    io_context loop({.backend = wanted()});
    CHECK(loop.backend() == resolve_backend(wanted()));
    CHECK(loop.on_this_thread());
    std::thread other([&loop] { CHECK(!loop.on_this_thread()); });
    other.join();
  }

  TEST_CASE("work is run on the loop's thread, in the order in which one thread posts it") {
    test::loop_thread loop;
    CHECK(loop.run(here()) == loop.id());
    std::vector<int> order;
    std::vector<std::unique_ptr<noting_item>> items;
    for (int number = 0; number < 1000; ++number)
      items.push_back(std::make_unique<noting_item>(&order, number));
    for (auto& item : items) loop.context().post(*item);
    // Posted last, from the same thread: so it comes back last.
    CHECK(loop.run(here()) == loop.id());
    CHECK(order.size() == 1000);
    CHECK(std::is_sorted(order.begin(), order.end()));
  }

  TEST_CASE("work posted from many threads is all run") {
    test::loop_thread loop;
    constexpr int each = 5000;
    std::array<std::atomic<int>, 4> ran{};
    const auto reaches = [](const std::atomic<int>& count, int wanted_count) {
      const auto until = std::chrono::steady_clock::now() + 60s;
      while (count < wanted_count && std::chrono::steady_clock::now() < until)
        std::this_thread::yield();
      return count == wanted_count;
    };
    std::vector<std::thread> posters;
    for (auto& count : ran) {
      posters.emplace_back([&loop, &count, &reaches] {
        for (int at = 1; at <= each; ++at) {
          loop.context().post(*new counting_item(&count));
          // Often enough for the loop to fall asleep in between.
          if (at % 64 == 0) CHECK(reaches(count, at));
        }
      });
    }
    for (auto& poster : posters) poster.join();
    for (const auto& count : ran) CHECK(reaches(count, each));
  }

  TEST_CASE("a loop may end as soon as its last item has run, whoever still leaves post") {
    for (int round = 0; round < 500; ++round) {
      std::atomic<io_context*> made{nullptr};
      std::thread owner([&made, round] {
        io_context loop({.backend = wanted()});
        // Keeps the loop awake, so that it takes the stop without being woken.
        endless_item endless(loop);
        if (round % 2 == 0) loop.post(endless);
        made.store(&loop);
        loop.run();
      });
      while (made.load() == nullptr) std::this_thread::yield();
      std::thread stopper([&made] { made.load()->stop(); });
      stopper.join();
      owner.join();
    }
  }

  TEST_CASE("a stop that comes before run ends it at once, and the loop runs again") {
    io_context loop({.backend = wanted()});
    loop.stop();
    loop.stop();
    loop.run();
    std::atomic<int> ran{0};
    loop.post(*new counting_item(&ran));
    async_scope scope;
    scope.spawn(loop, stop_it(&loop));
    loop.run();
    CHECK(ran == 1);
    std::thread stopper([&loop] { loop.stop(); });
    loop.run();
    stopper.join();
    CHECK(scope.running() == 0);
  }

  TEST_CASE("an item that posts itself keeps neither timers nor others waiting") {
    test::loop_thread loop;
    endless_item endless(loop.context());
    loop.context().post(endless);
    // From outside, and with a timer, while the loop never sleeps.
    loop.run(sleep_with(&endless, 2ms));
    CHECK(loop.run(here()) == loop.id());
    CHECK(endless.rounds > 0);
    CHECK(loop.run(exchange(&loop.context())) == "hello");
  }

  TEST_CASE("work for idle times waits until the loop has nothing else to do") {
    test::loop_thread loop;
    std::vector<int> order;
    loop.run(idle_and_posted(&loop.context(), &order));
    CHECK(order == std::vector<int>{0, 1, 2, 3});
  }

  TEST_CASE("work for idle times gets its turn on a loop that is never idle") {
    test::loop_thread loop;
    endless_item endless(loop.context());
    loop.context().post(endless);
    loop.run(end_when_idle(&loop.context(), &endless));
    CHECK(endless.ended);
    CHECK(loop.run(here()) == loop.id());
  }

  TEST_CASE("timers of a loop run in order and never early") {
    test::loop_thread loop;
    std::vector<int> order;
    loop.run(pauses_in_order(&loop.context(), &order));
    CHECK(order == std::vector<int>{0, 1, 2, 3});
    for (const int pause : {0, 1, 50, 999, 1000, 1001, 2500}) {
      CHECK(loop.run(sleep_is_never_short(std::chrono::microseconds(pause))));
    }
  }

  TEST_CASE("a loop comes and goes without leaking a descriptor") {
    {
      const io_context first({.backend = wanted()});
    }
    const auto before = test::open_descriptors();
    for (int round = 0; round < 20; ++round) {
      io_context loop({.backend = wanted()});
      loop.stop();
      loop.run();
    }
    CHECK(test::open_descriptors() == before);
  }

  TEST_CASE("where io_uring is refused, automatic means epoll, said once, and works") {
    if (this_architecture == 0) return;
    for (const unsigned refusal : {EPERM, ENOSYS}) {
      const int status = run_refused(refusal, "auto", "child: automatic under a filter");
      if (status == no_filter_here) {
        MESSAGE("no seccomp filter can be set here");
        return;
      }
      CHECK(status == 0);
    }
  }

  TEST_CASE("where io_uring is refused, asking for it is an error that says what to do") {
    if (this_architecture == 0) return;
    for (const unsigned refusal : {EPERM, ENOSYS}) {
      const int status = run_refused(refusal, "uring", "child: io_uring under a filter");
      if (status == no_filter_here) return;
      CHECK(status == 0);
    }
  }

  TEST_CASE("child: automatic under a filter" * doctest::skip()) {
    std::atomic<int> lines{0};
    std::string said;
    set_log_sink([&](log_level, std::string_view line) {
      ++lines;
      said = line;
    });
    REQUIRE(wanted() == io_backend::automatic);
    CHECK(resolve_backend(io_backend::automatic) == io_backend::epoll);
    for (int round = 0; round < 2; ++round) {
      test::loop_thread loop;
      CHECK(loop.context().backend() == io_backend::epoll);
      CHECK(loop.run(exchange(&loop.context())) == "hello");
    }
    CHECK(lines == 1);
    CHECK(said.find("epoll") != std::string::npos);
    set_log_sink({});
  }

  TEST_CASE("child: io_uring under a filter" * doctest::skip()) {
    REQUIRE(wanted() == io_backend::uring);
    errc kind{};
    std::string message;
    try {
      const io_context refused({.backend = wanted()});
    } catch (const error& failed) {
      kind = failed.kind();
      message = failed.message();
    }
    CHECK(kind == errc::unsupported);
    CHECK(message.find("HEADRACE_IO") != std::string::npos);
    CHECK(message.find("epoll") != std::string::npos);
  }
}
