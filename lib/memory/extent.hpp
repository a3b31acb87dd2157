#pragma once

#include "memory/mapping.hpp"

#include <cstddef>
#include <cstdint>

namespace headrace::detail {

enum class extent_state : std::uint8_t {
  live,       ///< A block, charged or held.
  warm,       ///< Free and resident.
  cold,       ///< Free, its pages were never touched or went back to the system.
  returning,  ///< On its way from warm to cold, or back: the system is being told, outside the
              ///< lock.
};

/// A run of bytes of one mapping. Described outside the memory itself: free memory is neither
/// touched nor resident.
struct alignas(64) extent {
  // One cache line: what a search reads.
  std::uint64_t begin = 0;  ///< A place, see `mapping::place`.
  std::size_t size = 0;
  std::size_t largest =
      0;  ///< This and the next four belong to the `extent_tree` that a free extent is in.
  extent* left = nullptr;
  extent* right = nullptr;
  extent* parent = nullptr;
  std::uint32_t priority = 0;
  extent_state state = extent_state::cold;

  mapping* home = nullptr;
  extent* previous =
      nullptr;  ///< The neighbour at the lower address, of any state; null at the mapping's begin.
  extent* next = nullptr;
  std::uint64_t opening = 0;  ///< Of a block: who it is charged to; 0 where it is held.

  [[nodiscard]] std::uint64_t end() const noexcept { return begin + size; }
  [[nodiscard]] std::byte* data() const noexcept { return home->data() + (begin - home->place()); }
};

}  // namespace headrace::detail
