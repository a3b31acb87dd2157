#pragma once

#include <headrace/base/export.hpp>
#include <headrace/base/result.hpp>

#include <cstdint>
#include <string>
#include <string_view>

namespace headrace {

/// Where tensors land: host memory, or a CUDA device of this machine.
struct HEADRACE_API device {
  enum class type : std::uint8_t { cpu, cuda };

  type kind = type::cpu;
  std::uint32_t index = 0;  ///< Which CUDA device; 0 for the CPU.

  /// `cpu`, `cuda:1`.
  [[nodiscard]] std::string to_string() const;

  friend bool operator==(const device&, const device&) = default;
};

[[nodiscard]] constexpr device cpu() noexcept { return {}; }
[[nodiscard]] constexpr device cuda(std::uint32_t index = 0) noexcept {
  return {device::type::cuda, index};
}

/// Reads `cpu`, `cuda` (the first one) or `cuda:1`. Anything else is `invalid_request`.
[[nodiscard]] HEADRACE_API result<device> parse_device(std::string_view text);

}  // namespace headrace
