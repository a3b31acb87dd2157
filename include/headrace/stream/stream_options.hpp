#pragma once

#include <headrace/base/sizes.hpp>
#include <headrace/device/device.hpp>
#include <headrace/stream/progress.hpp>
#include <headrace/stream/selection.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace headrace {

/// In which order tensors are handed over.
enum class delivery : std::uint8_t {
  completion,  ///< As they are complete: the fastest.
  requested,   ///< As `stream_options::tensors` lists them, or as the files hold them. Costs
               ///< waiting, not memory.
};

/// What to stream, and within which bounds.
struct stream_options {
  headrace::device device = cpu();

  /// Bytes that the stream may hold: what has been received and not been taken, what is being
  /// received, the tensor that `next()` exposes, and memory kept warm. A tensor larger than this is
  /// streamed alone. At least `open_options::chunk_size`.
  std::size_t memory_limit = 1_GiB;

  delivery order = delivery::completion;

  /// What to stream; empty: everything. A tensor that several selections name comes once, as the
  /// first of them says.
  std::vector<selection> tensors = {};

  /// Called now and then, ten times a second at most, and once at the end; on a thread of the
  /// runtime, which it must not block.
  std::function<void(const progress&)> on_progress = {};
};

}  // namespace headrace
