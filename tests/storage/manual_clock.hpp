#pragma once

#include <headrace/base/clock.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>

namespace headrace::test {

/// A clock that goes only where the test moves it. Threads: any.
class manual_clock final : public clock {
 public:
  [[nodiscard]] steady_time now() const noexcept override {
    return steady_time(std::chrono::seconds(1'000) + std::chrono::seconds(passed_.load()));
  }
  [[nodiscard]] system_time wall() const noexcept override {
    return start() + std::chrono::seconds(passed_.load());
  }
  void advance(std::chrono::seconds by) { passed_.fetch_add(by.count()); }

  /// 2026-01-01T00:00:00Z
  [[nodiscard]] static system_time start() noexcept {
    return system_time(std::chrono::seconds(1'767'225'600));
  }

 private:
  std::atomic<std::int64_t> passed_{0};
};

}  // namespace headrace::test
