#pragma once

#include "device/cuda_driver.hpp"

#include <cuda/fake_cuda.hpp>
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

namespace headrace::test {

/// The fake driver for the length of a test, in whose end nothing was done wrong and everything has
/// been given back.
///
///     const test::fake_machine machine("devices=2");
class fake_machine : public fake_cuda {
 public:
  using fake_cuda::fake_cuda;
  fake_machine(const fake_machine&) = delete;
  fake_machine& operator=(const fake_machine&) = delete;
  ~fake_machine() {
    let_go();
    CHECK(fake_cuda::settle());
    CHECK(violations() == "");
    CHECK(leaks() == "");
  }

  void settle() const { REQUIRE(fake_cuda::settle()); }

  /// What a device has at an address of its own.
  [[nodiscard]] std::string bytes(const std::byte* at, std::size_t size) const {
    const auto* const there =
        reinterpret_cast<const char*>(host_address(reinterpret_cast<std::uintptr_t>(at)));
    REQUIRE(there != nullptr);
    return {there, size};
  }
};

/// The driver as headrace sees it.
[[nodiscard]] inline const detail::cuda_driver& driver() {
  return *detail::cuda_driver::load().value();
}

/// Puts another function into the driver's table while it lives.
template <class Function>
class replaced {
 public:
  replaced(Function detail::cuda_driver::* entry, Function by)
      : entry_(const_cast<detail::cuda_driver&>(driver()).*entry),
        before_(std::exchange(entry_, by)) {}
  replaced(const replaced&) = delete;
  replaced& operator=(const replaced&) = delete;
  ~replaced() { entry_ = before_; }

 private:
  Function& entry_;
  const Function before_;
};

}  // namespace headrace::test
