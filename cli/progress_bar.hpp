#pragma once

#include <headrace/base/clock.hpp>
#include <headrace/stream/progress.hpp>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

namespace headrace::cli {

/// Where a stream leaves how far it is: two stores, whichever thread calls.
class progress_counters {
 public:
  void store(const progress& now) noexcept;
  /// `total_bytes` is 0 as long as nothing is known.
  [[nodiscard]] progress load() const noexcept;

 private:
  // Figures for people: each is right on its own, none publishes another.
  std::atomic<std::uint64_t> bytes_ = 0;
  std::atomic<std::uint64_t> total_ = 0;
};

/// The bar on a terminal: bytes, rate, time left; drawn by a thread of its own ten times a second,
/// so that nobody who delivers bytes waits for a terminal, and so that a stall shows.
///
/// Does nothing where standard error is no terminal. The destructor erases it.
class progress_bar {
 public:
  /// `label` stands in front: which pass this is.
  progress_bar(bool wanted, std::string label);
  ~progress_bar();
  progress_bar(const progress_bar&) = delete;
  progress_bar& operator=(const progress_bar&) = delete;

  /// What the stream's progress goes into; null where nobody would see it.
  [[nodiscard]] const std::shared_ptr<progress_counters>& counters() const noexcept {
    return counters_;
  }

 private:
  struct sample {
    steady_time time;
    std::uint64_t bytes;
  };

  void draw_until_finished();
  void draw();

  const std::string label_;
  std::shared_ptr<progress_counters> counters_;
  std::deque<sample> samples_;  ///< Of the last seconds: what the rate is taken from.
  bool drew_progress_ = false;
  std::mutex mutex_;
  std::condition_variable finishing_;
  bool finished_ = false;
  std::thread drawing_;
};

}  // namespace headrace::cli
