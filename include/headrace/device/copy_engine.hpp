#pragma once

#include <headrace/base/result.hpp>
#include <headrace/coro/task.hpp>
#include <headrace/device/allocator.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace headrace {

class cuda_device;
class io_context;

/// A run of bytes to be copied from a staging slot to where it belongs.
struct copy_piece {
  std::byte* to = nullptr;          ///< In the memory of the engine's device.
  const std::byte* from = nullptr;  ///< In staging memory.
  std::size_t size = 0;
};

/// What an engine has done so far.
struct copy_statistics {
  std::uint64_t pieces = 0;
  std::uint64_t bytes = 0;
  std::uint64_t batches = 0;   ///< Of copies that were told of together.
  std::uint64_t wake_ups = 0;  ///< Of the loop, by copies that had landed; at most one a batch.

  copy_statistics& operator+=(const copy_statistics& other) noexcept {
    pieces += other.pieces;
    bytes += other.bytes;
    batches += other.batches;
    wake_ups += other.wake_ups;
    return *this;
  }
};

/// Copies from staging memory to one device, for one loop.
///
/// Made, used and destroyed on the loop's thread, `follow` and `statistics` excepted. Must outlive
/// what it was asked for.
class copy_engine {
 public:
  virtual ~copy_engine() = default;

  /// Queues the copies of `pieces` when it is awaited, in their order, and completes on the loop
  /// when all of them have landed: then the staging memory may be used again, and the bytes are
  /// there for whatever is queued on any stream of the device afterwards.
  ///
  /// What `pieces` names must stay valid until then. Not cut short by a stop: the memory is the
  /// driver's until the copy has ended. Errors, within a second of the driver's knowing: those of
  /// the driver. A failed copy has ended too.
  [[nodiscard]] virtual task<result<void>> copy(std::span<const copy_piece> pieces) = 0;

  /// Has the copies that are queued from now on run after what is queued on `stream` at this
  /// moment. `invalid_request` for what is no stream of the device, for the per-thread default
  /// stream, and while a graph is captured from it. Threads: any, while the engine lives.
  [[nodiscard]] virtual result<void> follow(cuda_stream stream) = 0;

  /// Threads: any.
  [[nodiscard]] virtual copy_statistics statistics() const noexcept = 0;
};

/// Copies within host memory, on the thread that asks, and completes at once. It has no streams to
/// follow: `follow` does nothing.
[[nodiscard]] std::unique_ptr<copy_engine> make_host_copy_engine();

/// Copies to `target` by two streams of its own. Calls the driver, and does not block.
[[nodiscard]] result<std::unique_ptr<copy_engine>> make_cuda_copy_engine(
    io_context& loop, std::shared_ptr<cuda_device> target);

}  // namespace headrace
