#pragma once

#include <atomic>
#include <csignal>
#include <stop_token>
#include <thread>

namespace headrace::cli {

/// Ctrl-C and its kin, as a stop token.
///
/// The first SIGINT or SIGTERM requests a stop. If the program has not ended by itself soon after,
/// or if a second signal comes, it is ended on the spot, with 128 and the signal's number. SIGPIPE
/// is ignored: writing to a closed pipe is an error like others. Make one before any thread is
/// started, so that all threads leave the signals alone.
class interrupts {
 public:
  interrupts();
  ~interrupts();
  interrupts(const interrupts&) = delete;
  interrupts& operator=(const interrupts&) = delete;

  [[nodiscard]] std::stop_token token() const noexcept { return stop_.get_token(); }

  /// The first signal that came, 0 where none did.
  [[nodiscard]] int signal() const noexcept { return signal_.load(std::memory_order_relaxed); }

 private:
  void watch();

  std::stop_source stop_;
  std::atomic<int> signal_ = 0;  // One value on its own: nothing is published with it.
  int signals_;                  ///< A signalfd.
  int finished_;                 ///< An eventfd: the program has ended by itself.
  std::thread watcher_;
};

}  // namespace headrace::cli
