#pragma once

#include <headrace/safetensors/dtype.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace headrace {

/// What a header says of one tensor. `parse_header` has checked it: the offsets fit the shape and
/// the dtype.
struct tensor_info {
  std::string name;  ///< Any Unicode text in UTF-8; NUL and the empty name included.
  headrace::dtype dtype = headrace::dtype::u8;
  std::vector<std::uint64_t> shape;  ///< Extents, the slowest first. Empty: a scalar, one element.
  std::uint32_t file = 0;  ///< Which of the model's files holds it; 0 as `parse_header` leaves it.
  std::uint64_t begin =
      0;  ///< First byte, counted from the start of the file's data, not of the file.
  std::uint64_t end = 0;  ///< One past the last byte, counted likewise.

  /// In bytes.
  [[nodiscard]] std::uint64_t size() const noexcept { return end - begin; }

  friend bool operator==(const tensor_info&, const tensor_info&) = default;
};

}  // namespace headrace
