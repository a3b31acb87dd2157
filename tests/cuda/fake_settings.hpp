#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

// The version of CUDA whose driver this is.
#ifndef FAKE_CUDA_DRIVER_DEFAULT
#define FAKE_CUDA_DRIVER_DEFAULT 13000
#endif

namespace fake_cuda {

/// A call that is to fail: the `nth` one of `function` (from 1 on), or every one from that on.
struct planned_failure {
  std::string function;
  std::uint64_t nth = 1;
  bool from_then_on = false;
  int code = 0;
};

/// See fake_cuda_control.h, which says what each means.
struct settings {
  int devices = 1;
  int driver = FAKE_CUDA_DRIVER_DEFAULT;
  std::size_t memory = std::size_t{8} << 30;
  std::size_t pinned = 0;
  bool pools = true;
  double copy_gbps = 0;
  bool move = true;
  std::uint64_t seed = 1;
  unsigned delay_us = 0;
  unsigned init_ms = 0;
  bool check_bytes = true;
  std::vector<planned_failure> fail;
  std::uint64_t fail_copy = 0;  ///< Which one, from 1 on; 0: none.
  int fail_copy_code = 0;
  bool abort = false;
  std::string report;

  /// False where there is no such setting, or the value is none for it; nothing is changed then.
  bool set(std::string_view name, std::string_view value);

  /// What the environment says. Ends the process where that is wrong: a test that runs with other
  /// settings than it asked for shows nothing.
  static settings of_environment();
};

}  // namespace fake_cuda
