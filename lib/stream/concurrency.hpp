#pragma once

#include <headrace/base/clock.hpp>

#include <algorithm>
#include <cstdint>

namespace headrace::detail {

/// How many connections a stream uses: opens more while each step still adds throughput, and goes
/// back when one did not.
///
/// More is not better: on a fast network 32 connections reach 0.7 to 0.9 of what 8 do, since each
/// has its own memory in flight. A far store gives each connection a fraction of the line, and
/// there more are needed. So the ceiling is the user's, and what is used is measured.
///
/// A pure value: told of time and bytes, it answers with a number. Threads: the owner's lock.
class concurrency_control {
 public:
  /// `most` is at least 1.
  explicit concurrency_control(unsigned most) noexcept
      : most_(most), wanted_(std::min(most, initial)) {}

  /// How many connections should be at work.
  [[nodiscard]] unsigned wanted() const noexcept { return wanted_; }

  /// `bytes` have arrived, on all connections together, by `now`. Looks at epochs: long enough to
  /// tell a rate, and with enough bytes that every connection had its part. Whether `wanted` has
  /// changed.
  bool arrived(std::uint64_t bytes, steady_time now) noexcept {
    if (settled_) return false;
    if (epoch_start_ == steady_time{}) {
      epoch_start_ = now;
      return false;
    }
    epoch_bytes_ += bytes;
    const auto elapsed = std::chrono::duration<double>(now - epoch_start_).count();
    if (elapsed < shortest_epoch || epoch_bytes_ < least_bytes_each * wanted_) return false;
    const double rate = static_cast<double>(epoch_bytes_) / elapsed;
    epoch_start_ = now;
    epoch_bytes_ = 0;
    if (warming_) {
      // The first epoch after a change has the new connections' slow start in it.
      warming_ = false;
      return false;
    }
    warming_ = true;
    const unsigned before = wanted_;
    if (rate > best_rate_ * worthwhile) {
      best_rate_ = rate;
      best_ = wanted_;
      wanted_ = std::min(most_, wanted_ + std::max(2u, wanted_ / 2));
      settled_ = wanted_ == before;
    } else {
      wanted_ = best_;
      settled_ = true;
    }
    return wanted_ != before;
  }

 private:
  static constexpr unsigned initial = 8;
  static constexpr double shortest_epoch = 0.05;  // seconds
  static constexpr std::uint64_t least_bytes_each = 1 << 20;
  static constexpr double worthwhile = 1.1;

  unsigned most_;
  unsigned wanted_;
  unsigned best_ = 0;
  double best_rate_ = 0;
  steady_time epoch_start_{};
  std::uint64_t epoch_bytes_ = 0;
  bool warming_ = true;
  bool settled_ = false;
};

}  // namespace headrace::detail
