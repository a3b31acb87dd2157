#pragma once

#include <headrace/base/export.hpp>

#include <cstddef>
#include <span>
#include <utility>

namespace headrace {

class host_arena;

namespace detail {
class arena_state;
struct extent;
}  // namespace detail

/// Memory of one tensor, taken from a `host_arena`; goes back to it when dropped.
///
/// Aligned to 64 bytes, from 1 MiB on to 4096. The contents are undefined: a reused block holds
/// what was there before. A block keeps its arena's mappings alive, so it may outlive the stream,
/// the pool and the runtime. It is charged to the stream until it is detached, dropped, or until
/// the stream ends. Threads: may be dropped and detached on any thread; one block is used by one
/// thread at a time.
///
///     auto block = arena->allocate(tensor_bytes);
///     if (!block) return failure{block.error()};
///     receive(block->bytes());
class HEADRACE_API host_block {
 public:
  /// No memory: `data()` is null and `size()` is 0, as for an allocation of 0 bytes.
  host_block() noexcept = default;

  host_block(host_block&& other) noexcept
      : state_(std::exchange(other.state_, nullptr)),
        extent_(std::exchange(other.extent_, nullptr)),
        data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)) {}

  host_block& operator=(host_block&& other) noexcept {
    if (this != &other) {
      reset();
      state_ = std::exchange(other.state_, nullptr);
      extent_ = std::exchange(other.extent_, nullptr);
      data_ = std::exchange(other.data_, nullptr);
      size_ = std::exchange(other.size_, 0);
    }
    return *this;
  }

  host_block(const host_block&) = delete;
  host_block& operator=(const host_block&) = delete;

  ~host_block() { reset(); }

  [[nodiscard]] std::byte* data() noexcept { return data_; }
  [[nodiscard]] const std::byte* data() const noexcept { return data_; }

  /// The number of bytes that were asked for. What is charged is `host_arena::footprint(size())`.
  [[nodiscard]] std::size_t size() const noexcept { return size_; }

  [[nodiscard]] std::span<std::byte> bytes() noexcept { return {data_, size_}; }
  [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return {data_, size_}; }

  /// Makes the block the user's own: from now on it is not charged to the stream. Its memory still
  /// goes back to the arena when it is dropped: as idle bytes of the stream while that is open and
  /// its limit permits, else to the system. May give a release notice (see
  /// `host_arena::notify_on_release`). A second call does nothing.
  void detach() noexcept;

  /// Drops the memory now. May give a release notice.
  void reset() noexcept {
    if (extent_ != nullptr) release();
  }

 private:
  friend class detail::arena_state;

  host_block(detail::arena_state* state, detail::extent* extent, std::byte* data,
             std::size_t size) noexcept
      : state_(state), extent_(extent), data_(data), size_(size) {}

  void release() noexcept;

  detail::arena_state* state_ =
      nullptr;  // kept alive by the arena, or, once that is closed, by its blocks
  detail::extent* extent_ = nullptr;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace headrace
