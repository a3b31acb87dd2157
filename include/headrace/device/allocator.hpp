#pragma once

#include <headrace/base/result.hpp>
#include <headrace/coro/task.hpp>
#include <headrace/device/device.hpp>

#include <cstddef>
#include <utility>
#include <vector>

struct CUstream_st;

namespace headrace {

/// A stream of CUDA, by the name that <cuda.h> has for what is behind a `CUstream` (and a
/// `cudaStream_t`). Null is the default stream.
using cuda_stream = CUstream_st*;

/// Memory that an allocator gave; goes back to it when dropped, on whatever thread that happens.
///
/// Movable, owning. On a CUDA device `data()` is an address of the device: not for the host to
/// follow.
class device_block {
 public:
  /// Called once, on any thread; must not throw and should not wait.
  using release_function = void (*)(void* owner, std::byte* data, std::size_t size) noexcept;

  /// No memory.
  device_block() noexcept = default;

  /// `release(owner, data, size)` gives the memory back.
  device_block(std::byte* data, std::size_t size, release_function release, void* owner) noexcept
      : data_(data), size_(size), release_(release), owner_(owner) {}

  device_block(device_block&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)),
        release_(std::exchange(other.release_, nullptr)),
        owner_(std::exchange(other.owner_, nullptr)) {}

  device_block& operator=(device_block&& other) noexcept {
    if (this != &other) {
      reset();
      data_ = std::exchange(other.data_, nullptr);
      size_ = std::exchange(other.size_, 0);
      release_ = std::exchange(other.release_, nullptr);
      owner_ = std::exchange(other.owner_, nullptr);
    }
    return *this;
  }

  device_block(const device_block&) = delete;
  device_block& operator=(const device_block&) = delete;

  ~device_block() { reset(); }

  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }

  /// Drops the memory now.
  void reset() noexcept {
    const auto release = std::exchange(release_, nullptr);
    if (release != nullptr) release(owner_, data_, size_);
    data_ = nullptr;
    size_ = 0;
    owner_ = nullptr;
  }

 private:
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  release_function release_ = nullptr;
  void* owner_ = nullptr;
};

/// What one call of `allocator::allocate` gave.
struct allocated_batch {
  std::vector<device_block> blocks;  ///< One for each size, in that order.

  /// CUDA: an allocator that reuses memory in the order of a stream names it here. What is queued
  /// there at this moment runs before the first byte is written; nobody waits for it on the host.
  cuda_stream stream = nullptr;
  bool ordered = false;  ///< Whether `stream` counts.
};

/// Where the tensors of a stream get their memory: implement it to have them land in memory of
/// your own, a framework's caching allocator for instance.
///
/// Asynchronous, since such allocators may have to wait (for a lock, for other threads), and in
/// batches, since each call costs.
class allocator {
 public:
  virtual ~allocator() = default;

  /// One block of at least each of `sizes` bytes (none of them 0), in memory of `where`, aligned to
  /// 64 bytes or more.
  ///
  /// Awaited on a loop of the runtime, which it must not block: what can only block hops to a
  /// thread that may, and comes back. One call at a time for each stream. A failure ends the
  /// stream: `out_of_memory` where there was none; what had been got must have been given back.
  [[nodiscard]] virtual task<result<allocated_batch>> allocate(device where,
                                                               std::vector<std::size_t> sizes) = 0;
};

}  // namespace headrace
