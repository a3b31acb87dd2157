#pragma once

#include <headrace/base/export.hpp>
#include <headrace/base/sizes.hpp>
#include <headrace/coro/task.hpp>

#include <cstddef>
#include <memory>
#include <span>

namespace headrace {

class io_context;

namespace detail {
class bounce_pool;
}

/// Aligned memory of a loop, on loan: what reads past the page cache go through where their
/// destination does not fit. Goes back when dropped, on the loop's thread.
///
/// A loop keeps a few of them, made at the first use and registered with its ring where that is
/// allowed (the limit on locked memory), so that the kernel need not pin their pages for each read.
/// Who finds them all on loan gets memory of its own for that time: nobody waits.
class HEADRACE_API bounce_buffer {
 public:
  static constexpr std::size_t largest = 1_MiB;
  static constexpr std::size_t alignment = 4096;

  bounce_buffer() noexcept = default;
  bounce_buffer(bounce_buffer&& other) noexcept;
  bounce_buffer& operator=(bounce_buffer&& other) noexcept;
  ~bounce_buffer();

  /// At least `size` bytes, at most `largest`, for a read on this loop. Threads: the loop's own.
  /// Throws `std::bad_alloc`.
  [[nodiscard]] static task<bounce_buffer> borrow(io_context& context, std::size_t size);

  [[nodiscard]] std::span<std::byte> bytes() const noexcept { return bytes_; }

  /// Which of the ring's registered buffers it is; negative where it is none.
  [[nodiscard]] int registered() const noexcept { return registered_; }

 private:
  friend class detail::bounce_pool;
  bounce_buffer(std::shared_ptr<detail::bounce_pool> pool, std::span<std::byte> bytes,
                int registered) noexcept
      : pool_(std::move(pool)), bytes_(bytes), registered_(registered) {}
  void reset() noexcept;

  std::shared_ptr<detail::bounce_pool> pool_;
  std::span<std::byte> bytes_;
  int registered_ = -1;
};

}  // namespace headrace
