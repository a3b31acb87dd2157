#pragma once

#include <headrace/base/export.hpp>
#include <headrace/base/result.hpp>
#include <headrace/memory/host_block.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>

namespace headrace {

namespace detail {
class arena_state;
class pool_state;
}  // namespace detail

/// Is told that memory came back; see `host_arena::notify_on_release`.
class HEADRACE_API release_listener {
 public:
  virtual ~release_listener() = default;

  /// Called once for each arming, on the thread that dropped or detached a block, outside every
  /// lock of the memory room. May call the arena; should do no more than wake somebody.
  virtual void memory_released() noexcept = 0;
};

/// Where bytes are, at one moment.
struct memory_usage {
  std::size_t live =
      0;  ///< In blocks charged to a stream: reserved, undelivered, exposed by `next()`.
  std::size_t held =
      0;  ///< In blocks of the user's own: detached, or left over by a stream that has ended.
  std::size_t idle = 0;    ///< Free and warm: resident, ready to be used again.
  std::size_t extra = 0;   ///< Charged from outside: speculative buffers.
  std::size_t mapped = 0;  ///< Address space, cold parts included; those cost nothing.
};

/// The host memory of one stream: blocks cut from large huge-page-advised mappings, and the
/// stream's budget.
///
/// First touch of fresh memory costs more than receiving into it, so what matters is that warm
/// memory is used again and again: a block comes from the lowest address whose warm memory fits,
/// freed neighbours coalesce, and only where no warm memory fits is cold memory touched, continuing
/// at the end of warm memory where that serves. "Lowest" is the order in which the mappings were
/// made, then the address.
///
/// What holds after each call but a drop, in bytes, footprints of blocks counted:
///
///     live + extra + idle <= max(limit, largest block, live + extra)
///
/// A drop moves bytes from live to idle, so the sum never grows by it; what an oversized block
/// leaves is trimmed by the next allocation, before that touches new pages. Only free bytes in
/// pages that a block shares cannot be returned (less than a page on each side of a block):
/// `fits()` counts them, so that they delay admission rather than break the sum.
///
/// Threads: every member may be called from any thread. Nothing waits, but `allocate`, `charge` and
/// a drop may return memory to the system, which takes the kernel less than 0.1 ms for each 10 MiB;
/// no lock is held meanwhile.
///
///     auto arena = pool.open(stream.memory_limit, listener);
///     if (!arena->fits(size)) {
///       arena->notify_on_release();
///       if (!arena->fits(size)) return wait_for_notice();
///     }
///     auto block = arena->allocate(size);
class HEADRACE_API host_arena {
 public:
  host_arena(const host_arena&) = delete;
  host_arena& operator=(const host_arena&) = delete;

  /// Closes.
  ~host_arena();

  /// What a block of `size` bytes occupies and is charged: rounded up to 64 bytes, from 1 MiB on to
  /// 4096.
  [[nodiscard]] static std::size_t footprint(std::size_t size) noexcept;

  [[nodiscard]] std::size_t limit() const noexcept;

  /// Whether a block of `size` bytes may be admitted now: `live + extra + footprint <= limit`, or
  /// nothing is charged at all, so that a block larger than the limit is admitted alone. While
  /// blocks are live, free bytes that cannot be returned count too, unless warm memory fits the
  /// block. False once the arena is closed.
  [[nodiscard]] bool fits(std::size_t size) const noexcept;

  /// A block of `size` bytes, charged to the stream. Does not ask `fits()`: that is the caller's
  /// admission.
  ///
  /// Idle bytes beyond the limit are returned to the system, highest addresses first and whole huge
  /// pages where possible, before a page is touched. 0 bytes give a block without memory. Errors:
  /// `out_of_memory`, with the size, where the system gives no more address space; `cancelled`
  /// where the arena was closed.
  [[nodiscard]] result<host_block> allocate(std::size_t size);

  /// Touches cold memory ahead of need, so that a coming block of `size` bytes finds warm memory:
  /// at most `step` bytes, where such a block would be placed. Counted as idle, so within the limit
  /// (or the largest block). Gives how many bytes were touched: 0 where there is nothing to do, or
  /// no room. Blocks for as long as clearing the pages takes, with no lock held: to be called where
  /// time is left over.
  [[nodiscard]] std::size_t warm_ahead(std::size_t size, std::size_t step) noexcept;

  /// Counts `size` bytes held outside the arena against the limit; idle bytes make room for them.
  void charge(std::size_t size) noexcept;

  /// Takes back a charge. May give a release notice. Does nothing once the arena is closed.
  void uncharge(std::size_t size) noexcept;

  /// Asks for one notice: the next drop, detaching or uncharging calls the listener, once; then
  /// nobody is told until the next call of this. Arming twice gives one notice.
  ///
  /// The protocol that loses no wake-up: find `fits()` false, arm, ask `fits()` again, and only
  /// wait if that is false too. Memory that came back before the arming is seen by the second
  /// `fits()`; memory that comes back after it gives the notice. Where the second `fits()` is true,
  /// a notice may still come: it must be harmless.
  void notify_on_release() noexcept;

  [[nodiscard]] memory_usage usage() const noexcept;

  /// Ends the stream's use of the memory: blocks that are still out become their holders' own,
  /// charges end, an armed notice is dropped, and the idle bytes go back to the pool's bounded
  /// common part. A second call does nothing.
  void close() noexcept;

 private:
  friend class host_pool;

  host_arena(std::shared_ptr<detail::arena_state> state, std::weak_ptr<detail::pool_state> pool,
             std::size_t limit, std::size_t largest_block,
             std::weak_ptr<release_listener> listener);

  const std::shared_ptr<detail::arena_state> state_;
  const std::weak_ptr<detail::pool_state> pool_;
  const std::size_t limit_;
  const std::uint64_t opening_;  // which opening of `state_` this is: after `close()` the pool may
                                 // open it for another stream
};

}  // namespace headrace
