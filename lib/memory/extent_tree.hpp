#pragma once

#include "memory/extent.hpp"

#include <cstddef>
#include <cstdint>

namespace headrace::detail {

/// Free extents of one state, ordered by place; finds the lowest or highest one that is large
/// enough in O(log n).
///
/// A treap: a search tree by place and a heap by random priorities, each node knowing the largest
/// size below it. Intrusive and with parent links, so that an extent that only grows or shrinks
/// stays where it is.
class extent_tree {
 public:
  [[nodiscard]] bool empty() const noexcept { return root_ == nullptr; }

  /// The largest size in the tree, 0 where it is empty.
  [[nodiscard]] std::size_t largest() const noexcept {
    return root_ == nullptr ? 0 : root_->largest;
  }

  void insert(extent& node) noexcept;
  void erase(extent& node) noexcept;

  /// To be called when the size of `node` has changed; its place may have changed too, as long as
  /// the order has not.
  static void resized(extent& node) noexcept;

  /// The lowest extent of `size` bytes or more; null if there is none.
  [[nodiscard]] extent* first(std::size_t size) const noexcept;
  /// The highest one.
  [[nodiscard]] extent* last(std::size_t size) const noexcept;
  /// The next higher one above `node`.
  [[nodiscard]] static extent* following(const extent& node, std::size_t size) noexcept;
  /// The next lower one below `node`.
  [[nodiscard]] static extent* preceding(const extent& node, std::size_t size) noexcept;

 private:
  void rotate_up(extent& node) noexcept;
  void replace(extent& node, extent* with) noexcept;

  extent* root_ = nullptr;
  std::uint32_t random_ = 0x9e3779b9;
};

}  // namespace headrace::detail
