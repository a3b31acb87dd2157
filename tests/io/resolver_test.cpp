#include <headrace/io/resolver.hpp>

#include "raw_peer.hpp"

#include <headrace/base/error.hpp>
#include <headrace/coro/async_scope.hpp>
#include <headrace/io/inherited.hpp>

#include <doctest/doctest.h>
#include <fcntl.h>
#include <net/if.h>
#include <sched.h>
#include <support/loop_thread.hpp>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <initializer_list>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

using namespace headrace;
using namespace std::chrono_literals;

namespace {

task<std::unique_ptr<resolver>> make(io_context* loop, std::string servers) {
  co_return std::make_unique<resolver>(*loop, resolver::options{std::move(servers)});
}

task<> drop(std::unique_ptr<resolver> dropped) {
  const std::unique_ptr<resolver> here = std::move(dropped);
  co_return;
}

task<std::vector<std::string>> resolve(resolver* by, std::string host, std::uint16_t port) {
  auto found = co_await by->resolve(std::move(host), port);
  const auto addresses = std::move(found).value();
  std::vector<std::string> names;
  for (const auto& each : addresses) names.push_back(each.to_string());
  co_return names;
}

task<error> failure_of(resolver* by, std::string host) {
  auto found = co_await by->resolve(std::move(host), 80);
  if (!found) co_return found.error();
  co_return error(errc::internal, "resolved");
}

task<> fail_into(resolver* by, std::string host, std::vector<errc>* kinds) {
  const error failed = co_await failure_of(by, std::move(host));
  kinds->push_back(failed.kind());
}

task<> join(async_scope* scope) { co_await scope->join(); }

/// A resolver on a loop of its own.
struct resolving {
  test::loop_thread loop;
  std::unique_ptr<resolver> names;
  explicit resolving(std::string servers = {})
      : names(loop.run(make(&loop.context(), std::move(servers)))) {}
  ~resolving() { loop.run(drop(std::move(names))); }
};

bool contains(const std::vector<std::string>& all, std::string_view one) {
  return std::find(all.begin(), all.end(), one) != all.end();
}

/// A name server on 127.0.0.1 that knows `four.test`, `both.test`, `many.test` (more addresses than
/// anybody wants), `silent.test` and all
/// that begin like it (never answer), `held.test` (answers once that is released),
/// `late.test` (answers only who asks again), and that all others do not exist.
class name_server {
 public:
  explicit name_server(std::uint16_t port = 0)
      : socket_(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    const endpoint wanted = *endpoint::from_literal("127.0.0.1", port);
    REQUIRE(::bind(socket_.native(), wanted.data(), wanted.size()) == 0);
    sockaddr_storage storage{};
    socklen_t size = sizeof storage;
    REQUIRE(::getsockname(socket_.native(), reinterpret_cast<sockaddr*>(&storage), &size) == 0);
    address_ = endpoint(reinterpret_cast<sockaddr*>(&storage), size);
    thread_ = std::thread([this] { serve(); });
  }
  name_server(const name_server&) = delete;
  name_server& operator=(const name_server&) = delete;
  ~name_server() {
    release();
    const int self = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    const test::raw_peer waker(self);
    static_cast<void>(::sendto(self, "", 0, 0, address_.data(), address_.size()));
    thread_.join();
  }
  [[nodiscard]] std::string address() const { return address_.to_string(); }

  /// How many packets have come.
  [[nodiscard]] int asked() const noexcept { return asked_; }

  /// How many questions about `name` have come, each counted once however often it was repeated.
  [[nodiscard]] std::size_t questions(const std::string& name) const {
    const std::lock_guard lock(mutex_);
    const auto known = questions_.find(name);
    return known == questions_.end() ? 0 : known->second.size();
  }

  void release() noexcept {
    released_ = true;
    released_.notify_all();
  }

 private:
  void serve() {
    for (;;) {
      std::array<unsigned char, 512> memory{};
      sockaddr_storage from{};
      socklen_t size = sizeof from;
      const auto count = ::recvfrom(socket_.native(), memory.data(), memory.size(), 0,
                                    reinterpret_cast<sockaddr*>(&from), &size);
      if (count <= 0) return;
      const auto reply = answer({memory.begin(), memory.begin() + count});
      if (reply.empty()) continue;
      static_cast<void>(::sendto(socket_.native(), reply.data(), reply.size(), 0,
                                 reinterpret_cast<const sockaddr*>(&from), size));
    }
  }

  std::vector<unsigned char> answer(const std::vector<unsigned char>& question) {
    std::string name;
    std::size_t at = 12;
    while (at < question.size() && question[at] != 0) {
      const std::size_t label = question[at++];
      name.append(question.begin() + static_cast<std::ptrdiff_t>(at),
                  question.begin() + static_cast<std::ptrdiff_t>(at + label));
      name += '.';
      at += label;
    }
    const bool six = question.at(at + 2) == 28;
    const auto end = at + 5;
    {
      const std::lock_guard lock(mutex_);
      questions_[name].insert({question.at(0), question.at(1), question.at(at + 2)});
    }
    ++asked_;
    if (name.starts_with("silent")) return {};
    if (name == "held.test.") released_.wait(false);
    if (name == "late.test." && late_.insert(six).second) return {};
    std::vector<unsigned char> reply(question.begin(),
                                     question.begin() + static_cast<std::ptrdiff_t>(end));
    const bool known = name == "four.test." || name == "both.test." || name == "late.test." ||
                       name == "held.test." || name == "many.test.";
    const bool found = six ? name == "both.test." : known;
    const unsigned char count = name == "many.test." ? 28 : 1;
    reply[2] = 0x81;
    reply[3] = known ? 0x80 : 0x83;
    reply[7] = found ? count : 0;
    reply[9] = reply[11] = 0;
    if (!found) return reply;
    const auto add = [&reply](std::initializer_list<unsigned char> bytes) {
      reply.insert(reply.end(), bytes.begin(), bytes.end());
    };
    for (unsigned char at_record = 0; at_record < count; ++at_record) {
      // The name again, the type, the class, a minute to live, and the address from the range for
      // documentation.
      add({0xc0, 12, 0, static_cast<unsigned char>(six ? 28 : 1), 0, 1, 0, 0, 0, 60});
      const auto host = static_cast<unsigned char>(7 + at_record);
      if (six) {
        add({0, 16, 0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, host});
      } else {
        add({0, 4, 192, 0, 2, host});
      }
    }
    return reply;
  }

  test::raw_peer socket_;
  endpoint address_;
  std::atomic<int> asked_{0};
  std::atomic<bool> released_{false};
  mutable std::mutex mutex_;
  std::map<std::string, std::set<std::array<unsigned char, 3>>> questions_;
  std::set<bool> late_;
  std::thread thread_;
};

bool write_text(const char* path, const std::string& text) {
  const int number = ::open(path, O_WRONLY | O_CLOEXEC);
  if (number < 0) return false;
  const bool written =
      ::write(number, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  ::close(number);
  return written;
}

/// A machine of our own, as far as names go: a network with nothing but loopback, and another
/// resolv.conf.
bool leave_the_machine(const char* configuration) {
  const auto user = ::geteuid();
  const auto group = ::getegid();
  if (::unshare(CLONE_NEWUSER | CLONE_NEWNET | CLONE_NEWNS) != 0) return false;
  static_cast<void>(write_text("/proc/self/setgroups", "deny"));
  if (!write_text("/proc/self/uid_map", "0 " + std::to_string(user) + " 1")) return false;
  if (!write_text("/proc/self/gid_map", "0 " + std::to_string(group) + " 1")) return false;
  if (::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return false;
  if (::mount(configuration, "/etc/resolv.conf", nullptr, MS_BIND, nullptr) != 0) return false;
  const int number = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  ifreq loopback{};
  std::strcpy(loopback.ifr_name, "lo");
  loopback.ifr_flags = IFF_UP | IFF_RUNNING;
  const bool up = ::ioctl(number, SIOCSIFFLAGS, &loopback) == 0;
  ::close(number);
  return up;
}

constexpr int not_allowed_here = 77;

/// Runs this program again, on a machine whose name server is 127.0.0.1; gives its exit status.
int run_with_name_server(const char* test_case) {
  std::string configuration =
      (std::filesystem::temp_directory_path() / "headrace-resolver-test-XXXXXX").string();
  const int number = ::mkstemp(configuration.data());
  REQUIRE(number >= 0);
  const std::string text = "nameserver 127.0.0.1\noptions timeout:1 attempts:1\n";
  REQUIRE(::write(number, text.data(), text.size()) == static_cast<ssize_t>(text.size()));
  ::close(number);
  const std::string chosen = std::string("--test-case=") + test_case;
  // Not fork(): ThreadSanitizer starts a thread of its own in the child, and only a single thread
  // may leave its namespaces.
  const auto child = static_cast<pid_t>(::syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0));
  REQUIRE(child >= 0);
  if (child == 0) {
    if (!leave_the_machine(configuration.c_str())) ::_exit(not_allowed_here);
    ::execl("/proc/self/exe", "test_io", chosen.c_str(), "--no-skip", "--minimal",
            static_cast<char*>(nullptr));
    ::_exit(126);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  std::filesystem::remove(configuration);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

task<> found_into(resolver* by, std::string host, std::uint16_t port,
                  std::vector<std::string>* found) {
  const auto names = co_await resolve(by, std::move(host), port);
  found->insert(found->end(), names.begin(), names.end());
}

task<> forget(resolver* by, std::string host) {
  by->forget(host);
  co_return;
}

/// Within the time that a slow machine may take.
template <class Condition>
bool comes_true(Condition condition) {
  const auto end = std::chrono::steady_clock::now() + 20s;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::yield();
  }
  return true;
}

/// All that was spawned before on its loop has begun.
task<> nothing() { co_return; }

std::set<int> open_sockets() {
  std::set<int> numbers;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const auto target = std::filesystem::read_symlink(entry.path(), gone);
    if (!gone && target.string().starts_with("socket:"))
      numbers.insert(std::stoi(entry.path().filename().string()));
  }
  return numbers;
}

/// Forks as the runtime does; whether `numbers` are open in the child.
std::vector<bool> open_in_child(const std::vector<int>& numbers) {
  std::vector<bool> open;
  for (const int number : numbers) {
    detail::inherited_descriptors::lock();
    const pid_t child = ::fork();
    if (child == 0) {
      detail::inherited_descriptors::close_in_child();
      ::_exit(::fcntl(number, F_GETFD) >= 0 ? 1 : 0);
    }
    detail::inherited_descriptors::unlock();
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    REQUIRE(WIFEXITED(status));
    open.push_back(WEXITSTATUS(status) != 0);
  }
  return open;
}

task<> count_found(resolver* by, int* found) {
  const auto names = co_await resolve(by, "four.test", 80);
  CHECK(names == std::vector<std::string>{"192.0.2.7:80"});
  ++*found;
}

}  // namespace

TEST_SUITE("unit") {
  TEST_CASE("a literal address is its own answer") {
    resolving here;
    CHECK(here.loop.run(resolve(here.names.get(), "127.0.0.1", 80)) ==
          std::vector<std::string>{"127.0.0.1:80"});
    CHECK(here.loop.run(resolve(here.names.get(), "::1", 80)) ==
          std::vector<std::string>{"[::1]:80"});
    CHECK(here.loop.run(resolve(here.names.get(), "[::1]", 80)) ==
          std::vector<std::string>{"[::1]:80"});
  }

  TEST_CASE("localhost is this machine, as often as it is asked") {
    resolving here;
    for (int round = 0; round < 20; ++round) {
      const auto found = here.loop.run(resolve(here.names.get(), "localhost", 8080));
      CHECK((contains(found, "127.0.0.1:8080") || contains(found, "[::1]:8080")));
    }
  }

  TEST_CASE("what cannot be a name is a connect_error at once, and names the host") {
    resolving here;
    for (const auto& host : {std::string(), std::string("a..b"), std::string("local\0host", 10),
                             std::string(300, 'a'), std::string("two words")}) {
      CAPTURE(host);
      // A name server may be asked for some of them: then the stop is what ends it.
      std::stop_source source;
      const auto failed =
          here.loop.run(with_stop(source.get_token(), failure_of(here.names.get(), host)));
      CHECK(failed.kind() == errc::connect_error);
      CHECK(failed.reason().find(host) != std::string::npos);
    }
  }

  TEST_CASE("a stop before it begins and a stop while it waits end a look-up") {
    resolving here;
    {
      std::stop_source source;
      source.request_stop();
      const auto failed = here.loop.run(
          with_stop(source.get_token(), failure_of(here.names.get(), "nobody.invalid")));
      CHECK((failed.kind() == errc::cancelled || failed.kind() == errc::connect_error));
    }
    for (int round = 0; round < 50; ++round) {
      std::stop_source source;
      std::thread stopper([&source, round] {
        const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(round * 10);
        while (std::chrono::steady_clock::now() < until) std::this_thread::yield();
        source.request_stop();
      });
      const auto failed = here.loop.run(
          with_stop(source.get_token(), failure_of(here.names.get(), "nobody.invalid")));
      // Where there is no name server, or one that answers at once, it may have failed before.
      CHECK((failed.kind() == errc::cancelled || failed.kind() == errc::connect_error));
      stopper.join();
    }
  }

  TEST_CASE("of several look-ups at once a stop ends its own and leaves the others to their end") {
    resolving here;
    for (int round = 0; round < 20; ++round) {
      std::vector<errc> stopped_kinds;
      std::vector<errc> other_kinds;
      async_scope stopped;
      async_scope others;
      for (int at = 0; at < 3; ++at) {
        others.spawn(here.loop.context(),
                     fail_into(here.names.get(), "other.invalid", &other_kinds));
        stopped.spawn(here.loop.context(),
                      fail_into(here.names.get(), "stopped.invalid", &stopped_kinds));
      }
      stopped.request_stop();
      sync_wait(join(&stopped));
      CHECK(stopped_kinds.size() == 3);
      // A name server that never answers would keep us here.
      others.request_stop();
      sync_wait(join(&others));
      CHECK(other_kinds.size() == 3);
    }
    // And the resolver still works.
    CHECK(!here.loop.run(resolve(here.names.get(), "localhost", 1)).empty());
  }

  TEST_CASE("a resolver leaves no descriptor behind") {
    {
      const resolving first;
    }
    const auto before = test::open_descriptors();
    {
      resolving here;
      CHECK(!here.loop.run(resolve(here.names.get(), "localhost", 1)).empty());
      std::stop_source source;
      std::thread stopper([&source] { source.request_stop(); });
      static_cast<void>(here.loop.run(
          with_stop(source.get_token(), failure_of(here.names.get(), "nobody.invalid"))));
      stopper.join();
    }
    CHECK(test::open_descriptors() == before);
  }

  TEST_CASE("an answer is kept as long as it is good, whatever the case and the port") {
    const name_server server;
    resolving here(server.address());
    resolver* const names = here.names.get();
    const std::vector<std::string> expected{"192.0.2.7:80"};
    CHECK(here.loop.run(resolve(names, "four.test.", 80)) == expected);
    CHECK(server.questions("four.test.") == 2);
    CHECK(here.loop.run(resolve(names, "four.test.", 80)) == expected);
    CHECK(here.loop.run(resolve(names, "Four.TEST.", 8080)) ==
          std::vector<std::string>{"192.0.2.7:8080"});
    CHECK(server.questions("four.test.") == 2);
    here.loop.run(forget(names, "FOUR.test."));
    CHECK(here.loop.run(resolve(names, "four.test.", 80)) == expected);
    CHECK(server.questions("four.test.") == 4);
  }

  TEST_CASE("a failure is not kept") {
    const name_server server;
    resolving here(server.address());
    for (const std::size_t questions : {2, 4}) {
      const auto failed = here.loop.run(failure_of(here.names.get(), "missing.test."));
      CHECK(failed.kind() == errc::connect_error);
      CHECK(server.questions("missing.test.") == questions);
    }
  }

  TEST_CASE("those who ask together share one query, and the stop of one is its own") {
    name_server server;
    resolving here(server.address());
    resolver* const names = here.names.get();
    std::vector<std::string> found;
    std::vector<errc> kinds;
    async_scope first;
    async_scope others;
    // The first one drives; whoever is left goes on.
    first.spawn(here.loop.context(), fail_into(names, "held.test.", &kinds));
    for (const auto port : std::array<std::uint16_t, 3>{80, 443, 8080})
      others.spawn(here.loop.context(), found_into(names, "Held.Test.", port, &found));
    here.loop.run(nothing());
    first.request_stop();
    sync_wait(join(&first));
    CHECK(kinds == std::vector<errc>{errc::cancelled});
    server.release();
    sync_wait(join(&others));
    CHECK(found.size() == 3);
    for (const char* address : {"192.0.2.7:80", "192.0.2.7:443", "192.0.2.7:8080"})
      CHECK(contains(found, address));
    CHECK(server.questions("held.test.") == 2);
  }

  TEST_CASE("a query that nobody waits for any more is not joined by those who come later") {
    const name_server server;
    resolving here(server.address());
    resolver* const names = here.names.get();
    std::vector<errc> kinds;
    async_scope other;
    other.spawn(here.loop.context(), fail_into(names, "silent.test.", &kinds));
    for (int round = 0; round < 3; ++round) {
      async_scope stopped;
      const auto before = server.questions("silent-too.test.");
      stopped.spawn(here.loop.context(), fail_into(names, "silent-too.test.", &kinds));
      CHECK(comes_true([&] { return server.questions("silent-too.test.") > before; }));
      stopped.request_stop();
      sync_wait(join(&stopped));
    }
    CHECK(here.loop.run(resolve(names, "localhost", 1)).size() > 0);
    other.request_stop();
    sync_wait(join(&other));
    CHECK(kinds == std::vector<errc>(4, errc::cancelled));
  }

  TEST_CASE("a server cannot give more addresses than anybody will try") {
    const name_server server;
    resolving here(server.address());
    CHECK(here.loop.run(resolve(here.names.get(), "many.test.", 80)).size() == 16);
  }

  TEST_CASE("name servers that are no addresses are refused") {
    resolving here("a server, or two");
    const auto failed = here.loop.run(failure_of(here.names.get(), "four.test."));
    CHECK(failed.kind() == errc::invalid_request);
  }

  TEST_CASE("a forked child closes the sockets of queries under way, and none that came later") {
    const name_server server;
    resolving here(server.address());
    std::vector<errc> kinds;
    const auto before = open_sockets();
    async_scope asking;
    asking.spawn(here.loop.context(), fail_into(here.names.get(), "silent.test.", &kinds));
    REQUIRE(comes_true([&] { return server.asked() > 0; }));
    std::vector<int> opened;
    for (const int number : open_sockets()) {
      if (!before.contains(number)) opened.push_back(number);
    }
    REQUIRE(!opened.empty());
    CHECK(open_in_child(opened) == std::vector<bool>(opened.size(), false));
    asking.request_stop();
    sync_wait(join(&asking));

    // The same numbers are somebody else's now.
    std::vector<test::raw_peer> mine;
    std::vector<int> numbers;
    for (std::size_t count = 0; count < opened.size(); ++count) {
      mine.emplace_back(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
      numbers.push_back(mine.back().native());
    }
    CHECK(open_in_child(numbers) == std::vector<bool>(numbers.size(), true));
  }

  TEST_CASE("names are asked of a name server, and a stop of some does not lose the others") {
    const int status = run_with_name_server("child: a name server of our own");
    if (status == not_allowed_here) {
      MESSAGE("no network of our own can be had here");
      return;
    }
    CHECK(status == 0);
  }

  TEST_CASE("child: a name server of our own" * doctest::skip()) {
    const name_server server(53);
    resolving here;
    resolver* const names = here.names.get();
    CHECK(here.loop.run(resolve(names, "four.test", 80)) ==
          std::vector<std::string>{"192.0.2.7:80"});
    CHECK(server.asked() > 0);
    const auto both = here.loop.run(resolve(names, "both.test", 443));
    CHECK(both.size() == 2);
    CHECK(contains(both, "192.0.2.7:443"));
    CHECK(contains(both, "[2001:db8::7]:443"));
    const auto missing = here.loop.run(failure_of(names, "missing.test"));
    CHECK(missing.kind() == errc::connect_error);
    CHECK(missing.message().find("missing.test") != std::string::npos);

    // Its limit passes, and it is asked again.
    CHECK(here.loop.run(resolve(names, "late.test", 80)) ==
          std::vector<std::string>{"192.0.2.7:80"});
    {
      std::stop_source source;
      const int before = server.asked();
      std::thread stopper([&] {
        while (server.asked() == before) std::this_thread::yield();
        source.request_stop();
      });
      CHECK(here.loop.run(with_stop(source.get_token(), failure_of(names, "silent.test"))).kind() ==
            errc::cancelled);
      stopper.join();
    }

    // Whoever drives, and whoever is stopped: the others come to their end.
    for (int round = 0; round < 100; ++round) {
      CAPTURE(round);
      std::vector<errc> kinds;
      int found = 0;
      async_scope stopped;
      async_scope others;
      for (int at = 0; at < 4; ++at) {
        if (at % 2 == round % 2)
          stopped.spawn(here.loop.context(), fail_into(names, "silent.test", &kinds));
        others.spawn(here.loop.context(), count_found(names, &found));
        if (at % 2 != round % 2)
          stopped.spawn(here.loop.context(), fail_into(names, "silent.test", &kinds));
      }
      const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(round * 10);
      while (std::chrono::steady_clock::now() < until) std::this_thread::yield();
      stopped.request_stop();
      sync_wait(join(&stopped));
      sync_wait(join(&others));
      CHECK(found == 4);
      CHECK(kinds == std::vector<errc>(4, errc::cancelled));
    }
  }
}
