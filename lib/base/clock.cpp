#include <headrace/base/clock.hpp>

#include <atomic>
#include <random>

namespace headrace {
namespace {

class machine_clock final : public clock {
 public:
  [[nodiscard]] steady_time now() const noexcept override {
    return std::chrono::steady_clock::now();
  }
  [[nodiscard]] system_time wall() const noexcept override {
    return std::chrono::system_clock::now();
  }
};

class split_mix final : public random_source {
 public:
  explicit split_mix(std::uint64_t seed) : state_(seed) {}

  [[nodiscard]] double uniform() noexcept override {
    constexpr std::uint64_t step = 0x9e3779b97f4a7c15;
    // Relaxed: each call needs a state of its own, and no other memory hangs on it.
    std::uint64_t mixed = state_.fetch_add(step, std::memory_order_relaxed) + step;
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111eb;
    mixed ^= mixed >> 31;
    return static_cast<double>(mixed >> 11) * 0x1.0p-53;
  }

 private:
  std::atomic<std::uint64_t> state_;
};

}  // namespace

const clock& real_clock() noexcept {
  static const machine_clock instance;
  return instance;
}

std::unique_ptr<random_source> make_random_source(std::uint64_t seed) {
  return std::make_unique<split_mix>(seed);
}

std::unique_ptr<random_source> make_random_source() {
  std::random_device device;
  return make_random_source((static_cast<std::uint64_t>(device()) << 32) | device());
}

}  // namespace headrace
