#pragma once

#include <headrace/base/result.hpp>
#include <headrace/device/allocator.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace headrace {

class blocking_pool;

namespace detail {
class cuda_context;
}

/// A CUDA device with its primary context, which it retains: the one that the runtime API and the
/// frameworks use.
///
/// The driver's library is loaded at the first call, never linked: a program runs without one until
/// it asks for a device. No call leaves another context current on its caller's thread than was
/// there. Threads: any.
class cuda_device : public std::enable_shared_from_this<cuda_device> {
 public:
  /// Opens the device with this number. Blocks for as long as the driver takes to initialise (up to
  /// seconds the first time): for helper threads. Later calls give the same object.
  ///
  /// Errors: `unsupported` (a build without CUDA, no driver on this machine, a driver before CUDA
  /// 11.2, a forked child of a process that had initialised CUDA), `invalid_request` (no such
  /// device), `out_of_memory` (none left for a context), `unavailable` (the driver says so).
  [[nodiscard]] static result<std::shared_ptr<cuda_device>> open(std::uint32_t index);

  cuda_device(const cuda_device&) = delete;
  cuda_device& operator=(const cuda_device&) = delete;
  ~cuda_device();

  [[nodiscard]] std::uint32_t index() const noexcept;
  [[nodiscard]] const std::string& name() const noexcept;  ///< As the driver gives it.

  /// Device memory in the order of a stream (`cuMemAllocAsync`), from a pool of the device's own
  /// that keeps up to `idle_limit` bytes for later; where the driver has no pools, by `cuMemAlloc`.
  /// Blocks are freed in the order of `freed_on`: after what was queued there when a block is
  /// dropped. Without pools dropping a block waits for the device. Calls that may block run on
  /// `helpers`, which must outlive the allocator; blocks may outlive both, and keep the device.
  [[nodiscard]] std::shared_ptr<allocator> memory(blocking_pool& helpers, cuda_stream freed_on,
                                                  std::size_t idle_limit);

  /// Whether `stream` is a stream of this device that is in working order, and no graph is being
  /// captured from it: `invalid_request` otherwise. Does not block.
  [[nodiscard]] result<void> check(cuda_stream stream) const;

  /// Copies device memory to the host. Blocks until it is there: for helper threads.
  [[nodiscard]] result<void> read(std::span<std::byte> to, const std::byte* from) const;

  /// The context behind this device; for the device room alone.
  [[nodiscard]] detail::cuda_context& context() const noexcept { return *context_; }

 private:
  explicit cuda_device(std::shared_ptr<detail::cuda_context> retained) noexcept;

  const std::shared_ptr<detail::cuda_context> context_;
};

}  // namespace headrace
