#pragma once

#include "fake_cuda_control.h"

#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace headrace::test {

/// The fake CUDA driver of this process, found where the program under test finds its own: in
/// `LD_LIBRARY_PATH`. See fake_cuda_control.h for what each function does.
///
///     test::fake_cuda fake("delay_us=200 seed=7");
///     ...
///     CHECK(fake.violations() == "");
///     CHECK(fake.leaks() == "");
class fake_cuda {
 public:
  /// Begins with the settings of the environment and these. Ends the process where the library is
  /// not the fake, or does not know a setting.
  explicit fake_cuda(const std::string& settings = "") {
    fake_cuda_reset();
    configure(settings);
  }
  fake_cuda(const fake_cuda&) = delete;
  fake_cuda& operator=(const fake_cuda&) = delete;
  ~fake_cuda() {
    // Whoever still waits for the driver, in a test that has failed, comes back.
    fake_cuda_reset();
  }

  void configure(const std::string& settings) const {
    if (fake_cuda_configure(settings.c_str()) != 0)
      fail("a setting is not understood: " + settings);
  }

  [[nodiscard]] std::uint64_t count(const char* name) const { return fake_cuda_count(name); }
  [[nodiscard]] std::string violations() const { return text_of(fake_cuda_violations); }
  [[nodiscard]] std::string leaks() const { return text_of(fake_cuda_leaks); }
  [[nodiscard]] std::string report() const { return text_of(fake_cuda_report); }
  [[nodiscard]] unsigned depth() const { return fake_cuda_depth(); }
  [[nodiscard]] std::byte* host_address(std::uint64_t address) const {
    return static_cast<std::byte*>(fake_cuda_host_address(address));
  }

  void hold() const { fake_cuda_hold(); }
  void hold(void* stream) const { fake_cuda_hold_stream(stream); }
  void let_go() const { fake_cuda_let_go(); }
  void let_go(void* stream) const { fake_cuda_let_go_stream(stream); }
  void lose(int device, int code) const { fake_cuda_lose(device, code); }
  void capture(void* stream, bool active) const { fake_cuda_capture(stream, active ? 1 : 0); }

  /// Whether the streams came to their ends, within ten seconds.
  [[nodiscard]] bool settle() const { return fake_cuda_settle(10'000) == 0; }

  /// A function of the library.
  template <class Function>
  [[nodiscard]] static Function* find(const char* name) {
    static void* const library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) fail("there is no libcuda.so.1: put its folder into LD_LIBRARY_PATH");
    return reinterpret_cast<Function*>(::dlsym(library, name));
  }

 private:
  template <class Function>
  static Function* control(const char* name) {
    Function* const found = find<Function>(name);
    if (found == nullptr)
      fail("libcuda.so.1 is not the fake: put its folder first into LD_LIBRARY_PATH");
    return found;
  }

  [[noreturn]] static void fail(const std::string& message) {
    std::fprintf(stderr, "%s\n", message.c_str());
    std::abort();
  }

  static std::string text_of(std::size_t (*give)(char*, std::size_t)) {
    std::string text(std::size_t{1} << 20, '\0');
    give(text.data(), text.size());
    text.resize(text.find('\0'));
    return text;
  }

#define FAKE_CONTROL(name) decltype(::name)* name = control<decltype(::name)>(#name)
  FAKE_CONTROL(fake_cuda_configure);
  FAKE_CONTROL(fake_cuda_reset);
  FAKE_CONTROL(fake_cuda_hold);
  FAKE_CONTROL(fake_cuda_let_go);
  FAKE_CONTROL(fake_cuda_hold_stream);
  FAKE_CONTROL(fake_cuda_let_go_stream);
  FAKE_CONTROL(fake_cuda_lose);
  FAKE_CONTROL(fake_cuda_capture);
  FAKE_CONTROL(fake_cuda_settle);
  FAKE_CONTROL(fake_cuda_count);
  FAKE_CONTROL(fake_cuda_depth);
  FAKE_CONTROL(fake_cuda_violations);
  FAKE_CONTROL(fake_cuda_leaks);
  FAKE_CONTROL(fake_cuda_host_address);
  FAKE_CONTROL(fake_cuda_report);
#undef FAKE_CONTROL
};

}  // namespace headrace::test
