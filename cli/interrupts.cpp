#include "interrupts.hpp"

#include "standard_error.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <system_error>

namespace headrace::cli {
namespace {

using namespace std::chrono_literals;

// A user is promised an end within a second; what is left of it is for the machine.
constexpr auto grace = 600ms;

[[noreturn]] void leave(int signal) {
  standard_error::get().clear_status_or_leave_it();
  _exit(128 + signal);
}

int checked(int descriptor, const char* what) {
  if (descriptor < 0) throw std::system_error(errno, std::generic_category(), what);
  return descriptor;
}

}  // namespace

interrupts::interrupts() {
  std::signal(SIGPIPE, SIG_IGN);
  sigset_t waited{};
  sigemptyset(&waited);
  sigaddset(&waited, SIGINT);
  sigaddset(&waited, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &waited, nullptr);
  signals_ = checked(signalfd(-1, &waited, SFD_CLOEXEC), "signalfd");
  finished_ = checked(eventfd(0, EFD_CLOEXEC), "eventfd");
  watcher_ = std::thread(&interrupts::watch, this);
}

interrupts::~interrupts() {
  const std::uint64_t one = 1;
  static_cast<void>(!write(finished_, &one, sizeof one));
  watcher_.join();
  close(finished_);
  close(signals_);
}

void interrupts::watch() {
  using clock = std::chrono::steady_clock;
  clock::time_point end = clock::time_point::max();
  while (true) {
    int timeout = -1;
    if (signal() != 0) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - clock::now());
      if (left <= 0ms) leave(signal());
      timeout = static_cast<int>(left.count());
    }
    std::array<pollfd, 2> waited = {pollfd{.fd = signals_, .events = POLLIN, .revents = 0},
                                    pollfd{.fd = finished_, .events = POLLIN, .revents = 0}};
    if (poll(waited.data(), waited.size(), timeout) <= 0) continue;
    if (waited[1].revents != 0) return;
    signalfd_siginfo received{};
    if (read(signals_, &received, sizeof received) != sizeof received) continue;
    const int came = static_cast<int>(received.ssi_signo);
    if (signal() != 0) leave(signal());
    signal_.store(came, std::memory_order_relaxed);
    end = clock::now() + grace;
    stop_.request_stop();
  }
}

}  // namespace headrace::cli
