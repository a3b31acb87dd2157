#pragma once

#include <headrace/device/copy_engine.hpp>

#include <cstdint>
#include <optional>
#include <string>

namespace headrace::cli {

/// What one pass over a model took.
struct statistics {
  std::uint64_t tensors = 0;
  std::uint64_t bytes = 0;  ///< Of the tensors.
  double seconds = 0;       ///< From the first request to the last tensor.
  std::optional<double> first_tensor_seconds;
  std::uint64_t requests = 0;
  std::uint64_t retries = 0;
  double cpu_seconds = 0;
  std::uint64_t peak_rss_bytes = 0;  ///< Of the process until now.
  std::string io_backend;
  std::optional<copy_statistics> copies;  ///< To a device.

  [[nodiscard]] double bytes_per_second() const noexcept;

  /// One JSON object.
  [[nodiscard]] std::string to_json() const;

  /// One line for people.
  [[nodiscard]] std::string summary() const;
};

/// User and system time of the process until now.
[[nodiscard]] double process_cpu_seconds() noexcept;

/// The most memory that the process has had at once.
[[nodiscard]] std::uint64_t process_peak_rss_bytes() noexcept;

}  // namespace headrace::cli
