#include "storage/child_process.hpp"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <system_error>
#include <utility>

namespace headrace {
namespace {

using std::chrono::steady_clock;

class descriptor {
 public:
  explicit descriptor(int number = -1) noexcept : number_(number) {}
  descriptor(const descriptor&) = delete;
  descriptor& operator=(const descriptor&) = delete;
  ~descriptor() { close(); }
  void close() noexcept {
    if (number_ >= 0) ::close(std::exchange(number_, -1));
  }
  [[nodiscard]] int number() const noexcept { return number_; }

 private:
  int number_;
};

class spawn_settings {
 public:
  spawn_settings() {
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attributes);
  }
  spawn_settings(const spawn_settings&) = delete;
  spawn_settings& operator=(const spawn_settings&) = delete;
  ~spawn_settings() {
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
  }

  posix_spawn_file_actions_t actions{};
  posix_spawnattr_t attributes{};
};

/// A child that must not be left behind.
class child {
 public:
  explicit child(pid_t id) noexcept : id_(id) {}
  child(const child&) = delete;
  child& operator=(const child&) = delete;
  ~child() {
    if (id_ <= 0) return;
    ::kill(-id_, SIGKILL);
    int status = 0;
    while (waitpid(id_, &status, 0) < 0 && errno == EINTR) {
    }
  }

  /// Whether it has ended. Where somebody else has taken its status it counts as 0.
  [[nodiscard]] bool ended(int& exit_status) noexcept {
    siginfo_t seen{};
    if (waitid(P_PID, static_cast<id_t>(id_), &seen, WEXITED | WNOHANG | WNOWAIT) != 0) {
      if (errno != ECHILD) return false;
      id_ = -1;
      exit_status = 0;
      return true;
    }
    if (seen.si_pid == 0) return false;
    // Whatever it has started does not outlive it either. Until its status is taken, the number is
    // nobody else's.
    ::kill(-id_, SIGKILL);
    int status = 0;
    while (waitpid(id_, &status, 0) < 0 && errno == EINTR) {
    }
    id_ = -1;
    exit_status = WIFEXITED(status)     ? WEXITSTATUS(status)
                  : WIFSIGNALED(status) ? 128 + WTERMSIG(status)
                                        : 1;
    return true;
  }

 private:
  pid_t id_;
};

failure<error> failed(int code, const std::string& what) {
  return failure{system_failure({code, std::generic_category()}, what)};
}

struct waker {
  int number;
  void operator()() const noexcept {
    const std::uint64_t one = 1;
    const auto written = ::write(number, &one, sizeof one);
    static_cast<void>(written);
  }
};

}  // namespace

result<child_outcome> run_child(const std::vector<std::string>& arguments,
                                std::chrono::milliseconds limit, std::size_t most,
                                const std::stop_token& stop) {
  const std::string& program = arguments.front();
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) return failed(errno, "cannot make a pipe");
  const descriptor reading(ends[0]);
  descriptor writing(ends[1]);
  const descriptor waking(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (waking.number() < 0) return failed(errno, "cannot make an event");

  spawn_settings settings;
  posix_spawn_file_actions_addopen(&settings.actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&settings.actions, writing.number(), STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&settings.actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  sigset_t none;
  sigset_t all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&settings.attributes, &none);
  posix_spawnattr_setsigdefault(&settings.attributes, &all);
  posix_spawnattr_setpgroup(&settings.attributes, 0);
  posix_spawnattr_setflags(&settings.attributes,
                           POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  std::vector<char*> words;
  words.reserve(arguments.size() + 1);
  for (const auto& word : arguments) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  pid_t id = -1;
  const int refused = posix_spawnp(&id, program.c_str(), &settings.actions, &settings.attributes,
                                   words.data(), environ);
  if (refused != 0) return failed(refused, "cannot run " + program);
  child running(id);
  writing.close();

  const std::stop_callback wake(stop, waker{waking.number()});
  const auto end = steady_clock::now() + limit;
  child_outcome outcome;
  bool open = true;
  for (;;) {
    if (stop.stop_requested()) return failure{error(errc::cancelled, "stopped")};
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(end - steady_clock::now());
    if (left.count() <= 0) {
      return failure{error(errc::timeout, program + " has not ended within " +
                                              std::to_string(limit.count() / 1000) + " s")};
    }
    if (!open && running.ended(outcome.exit_status)) return outcome;
    // Nothing tells of the end of a child that has closed its output: then it is looked for.
    constexpr std::chrono::milliseconds soon{5};
    std::array<pollfd, 2> waited{{{waking.number(), POLLIN, 0}, {reading.number(), POLLIN, 0}}};
    const int ready = poll(waited.data(), open ? 2 : 1,
                           static_cast<int>(open ? left.count() : std::min(left, soon).count()));
    if (ready < 0 && errno != EINTR) return failed(errno, "cannot wait for " + program);
    if (ready <= 0 || !open || waited[1].revents == 0) continue;
    std::array<char, 4096> part{};
    const auto count = ::read(reading.number(), part.data(), part.size());
    if (count < 0 && errno != EINTR) return failed(errno, "cannot read what " + program + " says");
    if (count > 0) outcome.output.append(part.data(), static_cast<std::size_t>(count));
    open = count != 0;
    if (outcome.output.size() > most) {
      return failure{error(errc::protocol_error,
                           program + " writes more than " + std::to_string(most) + " bytes")};
    }
  }
}

}  // namespace headrace
