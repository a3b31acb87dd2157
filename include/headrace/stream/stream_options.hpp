#pragma once

#include <headrace/base/sizes.hpp>
#include <headrace/device/allocator.hpp>
#include <headrace/device/device.hpp>
#include <headrace/stream/progress.hpp>
#include <headrace/stream/selection.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
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
  /// streamed alone. At least `open_options::chunk_size`. With another device these are bytes of
  /// the device; `runtime_options::staging` comes on top, on the host.
  std::size_t memory_limit = 1_GiB;

  delivery order = delivery::completion;

  /// What to stream; empty: everything. A tensor that several selections name comes once, as the
  /// first of them says.
  std::vector<selection> tensors = {};

  /// Where the tensors' memory comes from; null: from the runtime's warm memory, on a CUDA device
  /// from the driver, in the order of streams. Tensors may keep it alive longer than the stream.
  std::shared_ptr<allocator> destination = {};

  /// CUDA, without a `destination`: the stream on which the tensors are going to be used. The
  /// memory of a dropped tensor is given back after what was queued there. Null: the default
  /// stream. Must outlive the tensors.
  cuda_stream consumer_stream = nullptr;

  /// Called now and then, ten times a second at most, and once at the end; on a thread of the
  /// runtime, which it must not block.
  std::function<void(const progress&)> on_progress = {};
};

}  // namespace headrace
