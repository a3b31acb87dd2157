#pragma once

#include <headrace/base/export.hpp>

#include <chrono>
#include <cstdint>
#include <memory>

namespace headrace {

using steady_time = std::chrono::steady_clock::time_point;
using system_time = std::chrono::system_clock::time_point;

/// Time and chance, injectable: no test sleeps to reach a limit, and a fault schedule repeats from
/// its seed. Threads: every member may be called from any thread.
class HEADRACE_API clock {
 public:
  virtual ~clock() = default;
  /// For limits and durations.
  [[nodiscard]] virtual steady_time now() const noexcept = 0;
  /// For signatures and expiry times.
  [[nodiscard]] virtual system_time wall() const noexcept = 0;
};

/// The machine's own clocks.
[[nodiscard]] HEADRACE_API const clock& real_clock() noexcept;

/// A source of random numbers for jitter. Not for keys.
class HEADRACE_API random_source {
 public:
  virtual ~random_source() = default;
  /// Uniform in `[0, 1)`.
  [[nodiscard]] virtual double uniform() noexcept = 0;
};

/// SplitMix64 from `seed`: the same seed gives the same numbers. Threads: safe from any thread.
[[nodiscard]] HEADRACE_API std::unique_ptr<random_source> make_random_source(std::uint64_t seed);

/// Seeded from the machine.
[[nodiscard]] HEADRACE_API std::unique_ptr<random_source> make_random_source();

}  // namespace headrace
