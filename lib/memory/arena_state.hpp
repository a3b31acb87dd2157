#pragma once

#include "memory/extent.hpp"
#include "memory/extent_tree.hpp"
#include "memory/mapping.hpp"

#include <headrace/base/result.hpp>
#include <headrace/memory/host_arena.hpp>
#include <headrace/memory/host_block.hpp>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

namespace headrace::detail {

/// What a `host_arena` is a handle to, and what blocks belong to: mappings, extents and the numbers
/// of the stream that has it open. It outlives its stream as long as a block is out or the pool
/// keeps it, and may be opened again.
///
/// One mutex guards everything, for about 50 ns at a time: nobody calls the system, the listener or
/// a destructor of somebody else's with it locked. Extents that are being returned are out of the
/// trees meanwhile, as blocks are.
class arena_state : public std::enable_shared_from_this<arena_state> {
 public:
  arena_state() = default;
  arena_state(const arena_state&) = delete;
  arena_state& operator=(const arena_state&) = delete;
  ~arena_state() = default;

  /// Begins a stream; the number is the key to everything of its own, until `close`. Must be
  /// closed.
  [[nodiscard]] std::uint64_t open(std::size_t limit, std::size_t largest_block,
                                   std::weak_ptr<release_listener> listener);
  /// False where the stream had ended before.
  bool close(std::uint64_t opening) noexcept;

  [[nodiscard]] bool fits(std::uint64_t opening, std::size_t size) noexcept;
  [[nodiscard]] result<host_block> allocate(std::uint64_t opening, std::size_t size);
  [[nodiscard]] std::size_t warm_ahead(std::uint64_t opening, std::size_t size,
                                       std::size_t step) noexcept;
  void charge(std::uint64_t opening, std::size_t size) noexcept;
  void uncharge(std::uint64_t opening, std::size_t size) noexcept;
  void notify_on_release(std::uint64_t opening) noexcept;

  void detach(extent& block) noexcept;
  void release(extent& block, std::size_t size) noexcept;

  /// How many idle bytes to keep while no stream has it open; the rest is returned.
  void keep(std::size_t idle) noexcept;
  /// Returns all idle bytes.
  void drop_idle() noexcept;
  /// Idle bytes that could be returned, and those that could not since they share a page with a
  /// block.
  struct idle_bytes {
    std::size_t whole;
    std::size_t stuck;
  };
  [[nodiscard]] idle_bytes idle() const noexcept;

  [[nodiscard]] memory_usage usage() const noexcept;
  /// All zero where that stream has ended.
  [[nodiscard]] memory_usage usage(std::uint64_t opening) const noexcept;

 private:
  using guard = std::unique_lock<std::mutex>;

  [[nodiscard]] bool is_open(std::uint64_t opening) const noexcept {
    return open_ && opening == opening_;
  }
  [[nodiscard]] bool is_charged(const extent& block) const noexcept {
    return open_ && block.opening == opening_;
  }
  /// How many bytes may be idle.
  [[nodiscard]] std::size_t allowance() const noexcept;
  [[nodiscard]] std::weak_ptr<release_listener> take_notice() noexcept;

  [[nodiscard]] extent& make_extent(mapping& home, std::uint64_t begin, std::size_t size) noexcept;
  void recycle(extent& gone) noexcept;
  void reserve_extents();
  void add(mapping fresh);
  void absorb(extent& node, extent& neighbour) noexcept;

  [[nodiscard]] extent_tree& tree(extent_state state) noexcept {
    return state == extent_state::warm ? warm_ : cold_;
  }
  void count(const extent& free) noexcept;
  void discount(const extent& free) noexcept;
  /// Makes `node`, which is in no tree, free, and joins it with its neighbours of the same state.
  void put_back(extent& node, extent_state state) noexcept;
  /// Takes a part out of a free extent; what is left of it stays in its tree.
  [[nodiscard]] extent& cut(extent& from, std::uint64_t begin, std::size_t size) noexcept;

  struct placement {
    extent* block = nullptr;
    std::uint64_t cold_begin =
        0;  // of the cold extent in which the block ends, where it ends in one
    bool ends_cold = false;
  };
  [[nodiscard]] placement place(std::size_t size) noexcept;
  [[nodiscard]] extent* first_cold_for(std::size_t size) noexcept;
  [[nodiscard]] placement place_cold(std::size_t size, std::size_t alignment) noexcept;
  [[nodiscard]] placement take_run(extent& first, std::uint64_t begin, std::size_t size) noexcept;
  struct cold_rest {
    extent* from = nullptr;
    std::size_t size = 0;
  };
  [[nodiscard]] static cold_rest rest_of_huge_page(const placement& at) noexcept;
  void warm_up(const placement& at) noexcept;

  enum class trim_to { allowance, nothing };
  void trim(guard& lock, trim_to target = trim_to::allowance, std::size_t reserve = 0) noexcept;
  [[nodiscard]] std::size_t collect(std::size_t granule, std::size_t excess, extent** batch,
                                    std::size_t room) noexcept;

  mutable std::mutex mutex_;

  std::deque<mapping> mappings_;  // never moves them, as extents point to them
  std::uint64_t next_place_ = huge_page_size;
  extent_tree warm_;
  extent_tree cold_;
  std::vector<std::unique_ptr<extent[]>> extents_;
  extent* spare_ = nullptr;
  std::size_t spares_ = 0;

  std::size_t live_ = 0;
  std::size_t held_ = 0;
  std::size_t idle_ = 0;
  std::size_t stuck_ = 0;  // the part of idle_ that is not in whole pages
  std::size_t extra_ = 0;
  std::size_t mapped_ = 0;
  std::size_t blocks_ = 0;

  bool open_ = false;
  bool armed_ = false;
  std::uint64_t opening_ = 0;
  std::size_t limit_ = 0;
  std::size_t bound_ =
      0;  ///< What live and idle bytes may come to together: the limit, or the largest block.
  std::size_t keep_ = 0;
  std::weak_ptr<release_listener> listener_;
  std::shared_ptr<arena_state>
      self_;  // while closed with blocks out: they hold no reference of their own
};

}  // namespace headrace::detail
