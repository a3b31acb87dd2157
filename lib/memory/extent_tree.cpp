#include "memory/extent_tree.hpp"

#include <algorithm>

namespace headrace::detail {

namespace {

[[nodiscard]] std::size_t largest_of(const extent* node) noexcept {
  return node == nullptr ? 0 : node->largest;
}

[[nodiscard]] std::size_t largest_below(const extent& node) noexcept {
  return std::max({node.size, largest_of(node.left), largest_of(node.right)});
}

// `node` must hold one, that is `node.largest >= size`.
[[nodiscard]] extent* first_below(extent* node, std::size_t size) noexcept {
  for (;;) {
    if (largest_of(node->left) >= size) {
      node = node->left;
    } else if (node->size >= size) {
      return node;
    } else {
      node = node->right;
    }
  }
}

[[nodiscard]] extent* last_below(extent* node, std::size_t size) noexcept {
  for (;;) {
    if (largest_of(node->right) >= size) {
      node = node->right;
    } else if (node->size >= size) {
      return node;
    } else {
      node = node->left;
    }
  }
}

}  // namespace

void extent_tree::replace(extent& node, extent* with) noexcept {
  auto* const parent = node.parent;
  if (parent == nullptr) {
    root_ = with;
  } else if (parent->left == &node) {
    parent->left = with;
  } else {
    parent->right = with;
  }
  if (with != nullptr) with->parent = parent;
}

void extent_tree::rotate_up(extent& node) noexcept {
  auto& parent = *node.parent;
  replace(parent, &node);
  if (parent.left == &node) {
    parent.left = node.right;
    if (node.right != nullptr) node.right->parent = &parent;
    node.right = &parent;
  } else {
    parent.right = node.left;
    if (node.left != nullptr) node.left->parent = &parent;
    node.left = &parent;
  }
  parent.parent = &node;
  node.largest = parent.largest;
  parent.largest = largest_below(parent);
}

void extent_tree::insert(extent& node) noexcept {
  random_ ^= random_ << 13;
  random_ ^= random_ >> 17;
  random_ ^= random_ << 5;
  node.priority = random_;
  node.left = nullptr;
  node.right = nullptr;
  node.largest = node.size;

  extent* parent = nullptr;
  auto** link = &root_;
  while (*link != nullptr) {
    parent = *link;
    parent->largest = std::max(parent->largest, node.size);
    link = node.begin < parent->begin ? &parent->left : &parent->right;
  }
  node.parent = parent;
  *link = &node;
  while (node.parent != nullptr && node.parent->priority < node.priority) rotate_up(node);
}

void extent_tree::erase(extent& node) noexcept {
  while (node.left != nullptr && node.right != nullptr) {
    rotate_up(node.left->priority > node.right->priority ? *node.left : *node.right);
  }
  auto* const parent = node.parent;
  replace(node, node.left != nullptr ? node.left : node.right);
  // Every node above still counts `node` in, so where leaving it out changes nothing, nothing
  // changes further up.
  if (parent != nullptr) resized(*parent);
}

void extent_tree::resized(extent& node) noexcept {
  for (auto* above = &node; above != nullptr; above = above->parent) {
    const auto largest = largest_below(*above);
    if (largest == above->largest) return;
    above->largest = largest;
  }
}

extent* extent_tree::first(std::size_t size) const noexcept {
  return root_ == nullptr || root_->largest < size ? nullptr : first_below(root_, size);
}

extent* extent_tree::last(std::size_t size) const noexcept {
  return root_ == nullptr || root_->largest < size ? nullptr : last_below(root_, size);
}

extent* extent_tree::following(const extent& node, std::size_t size) noexcept {
  if (largest_of(node.right) >= size) return first_below(node.right, size);
  const auto* below = &node;
  for (auto* above = node.parent; above != nullptr; below = above, above = above->parent) {
    if (above->left != below) continue;
    if (above->size >= size) return above;
    if (largest_of(above->right) >= size) return first_below(above->right, size);
  }
  return nullptr;
}

extent* extent_tree::preceding(const extent& node, std::size_t size) noexcept {
  if (largest_of(node.left) >= size) return last_below(node.left, size);
  const auto* below = &node;
  for (auto* above = node.parent; above != nullptr; below = above, above = above->parent) {
    if (above->right != below) continue;
    if (above->size >= size) return above;
    if (largest_of(above->left) >= size) return last_below(above->left, size);
  }
  return nullptr;
}

}  // namespace headrace::detail
