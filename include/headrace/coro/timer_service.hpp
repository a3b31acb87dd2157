#pragma once

#include <headrace/base/clock.hpp>
#include <headrace/base/export.hpp>

#include <cstddef>
#include <limits>
#include <optional>
#include <vector>

namespace headrace {

/// Something to run at a time. The owner embeds it and keeps it alive until it has run or was
/// cancelled.
struct timer_item {
  using function = void(timer_item&) noexcept;

  explicit timer_item(function* to_run = nullptr) noexcept : run(to_run) {}
  timer_item(const timer_item&) = delete;
  timer_item& operator=(const timer_item&) = delete;

  [[nodiscard]] bool pending() const noexcept { return position != idle; }

  function* run;
  static constexpr std::size_t idle = std::numeric_limits<std::size_t>::max();
  std::size_t position = idle;  ///< Where the queue holds it; the queue's own.

 protected:
  ~timer_item() = default;
};

/// What an executor offers for limits and pauses. Threads: the executor's own thread alone.
class HEADRACE_API timer_service {
 public:
  /// Runs `item` on the executor once `deadline` has passed. Must not be pending.
  virtual void start_timer(timer_item& item, steady_time deadline) = 0;
  /// Takes `item` back; nothing happens if it is not pending.
  virtual void cancel_timer(timer_item& item) noexcept = 0;
  /// The clock that deadlines are measured on.
  [[nodiscard]] virtual steady_time now() const noexcept = 0;

 protected:
  ~timer_service() = default;
};

/// The pending timers of one thread: a binary heap, so that starting and cancelling cost O(log n)
/// and the next deadline is exact. A loop has a few timers a connection, started a few times a
/// second: a wheel would save nothing here.
class HEADRACE_API timer_queue {
 public:
  void start(timer_item& item, steady_time deadline);
  void cancel(timer_item& item) noexcept;

  /// When the earliest timer is due.
  [[nodiscard]] std::optional<steady_time> next() const noexcept;

  /// Runs what is due at `now`, in the order of the deadlines. Items may start and cancel others.
  void run_due(steady_time now) noexcept;

 private:
  struct entry {
    steady_time deadline;
    timer_item* item;
  };

  void place(std::size_t position, entry moved) noexcept;
  void rise(std::size_t position) noexcept;
  void sink(std::size_t position) noexcept;

  std::vector<entry> heap_;
};

}  // namespace headrace
