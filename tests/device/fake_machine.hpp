#pragma once

#include "device/cuda_driver.hpp"

#include <cuda/fake_cuda_control.h>
#include <dlfcn.h>
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <utility>

namespace headrace::test {

/// The fake driver for the length of a test: as its environment has it in the beginning; without a
/// violation, and with everything given back, in the end.
///
///     const test::fake_machine machine("devices=2");
class fake_machine {
 public:
  explicit fake_machine(const std::string& settings = {}) {
    find(reset_, "fake_cuda_reset");
    find(configure_, "fake_cuda_configure");
    find(hold_, "fake_cuda_hold");
    find(let_go_, "fake_cuda_let_go");
    find(lose_, "fake_cuda_lose");
    find(capture_, "fake_cuda_capture");
    find(settle_, "fake_cuda_settle");
    find(count_, "fake_cuda_count");
    find(depth_, "fake_cuda_depth");
    find(violations_, "fake_cuda_violations");
    find(leaks_, "fake_cuda_leaks");
    find(host_address_, "fake_cuda_host_address");
    reset_();
    configure(settings);
  }
  fake_machine(const fake_machine&) = delete;
  fake_machine& operator=(const fake_machine&) = delete;
  ~fake_machine() {
    let_go_();
    CHECK(settle_(limit_ms) == 0);
    CHECK(said_by(violations_) == "");
    CHECK(said_by(leaks_) == "");
    reset_();
  }

  void configure(const std::string& settings) const { REQUIRE(configure_(settings.c_str()) == 0); }
  void hold() const { hold_(); }
  void let_go() const { let_go_(); }
  void lose(int device, CUresult code) const { lose_(device, code); }
  void capture(bool active, CUstream from = nullptr) const { capture_(from, active ? 1 : 0); }
  void settle() const { REQUIRE(settle_(limit_ms) == 0); }
  [[nodiscard]] std::uint64_t count(const char* name) const { return count_(name); }
  [[nodiscard]] unsigned depth() const { return depth_(); }
  [[nodiscard]] std::string leaks() const { return said_by(leaks_); }

  /// What a device has at an address of its own.
  [[nodiscard]] std::string bytes(const std::byte* at, std::size_t size) const {
    const auto* const there =
        static_cast<const char*>(host_address_(reinterpret_cast<std::uintptr_t>(at)));
    REQUIRE(there != nullptr);
    return {there, size};
  }

  /// An entry of the driver that headrace itself does not call.
  template <class Function>
  static void find(Function& function, const char* name) {
    function = reinterpret_cast<Function>(::dlsym(library(), name));
    const bool found = function != nullptr;
    REQUIRE_MESSAGE(found, name << " is not in the libcuda.so.1 that was found");
  }

 private:
  static constexpr unsigned limit_ms = 30000;

  static void* library() {
    static void* const loaded = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    REQUIRE_MESSAGE(loaded != nullptr,
                    "the folder of the fake libcuda.so.1 is to be in LD_LIBRARY_PATH");
    return loaded;
  }

  static std::string said_by(std::size_t (*say)(char*, std::size_t)) {
    std::string text(65536, '\0');
    say(text.data(), text.size());
    text.resize(text.find('\0'));
    return text;
  }

  decltype(&fake_cuda_reset) reset_;
  decltype(&fake_cuda_configure) configure_;
  decltype(&fake_cuda_hold) hold_;
  decltype(&fake_cuda_let_go) let_go_;
  decltype(&fake_cuda_lose) lose_;
  decltype(&fake_cuda_capture) capture_;
  decltype(&fake_cuda_settle) settle_;
  decltype(&fake_cuda_count) count_;
  decltype(&fake_cuda_depth) depth_;
  decltype(&fake_cuda_violations) violations_;
  decltype(&fake_cuda_leaks) leaks_;
  decltype(&fake_cuda_host_address) host_address_;
};

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
