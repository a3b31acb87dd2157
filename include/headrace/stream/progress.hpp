#pragma once

#include <cstdint>

namespace headrace {

/// How far a stream is.
struct progress {
  std::uint64_t bytes = 0;        ///< Of tensors, received.
  std::uint64_t total_bytes = 0;  ///< Of all tensors that were asked for.
  std::uint64_t tensors = 0;      ///< Complete.
  std::uint64_t total_tensors = 0;
};

}  // namespace headrace
