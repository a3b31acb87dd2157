#include "memory/extent_tree.hpp"

#include <doctest/doctest.h>

#include <deque>
#include <map>
#include <random>
#include <vector>

using headrace::detail::extent;
using headrace::detail::extent_tree;

TEST_SUITE("unit") {
  TEST_CASE("an empty tree of extents holds nothing") {
    const extent_tree tree;
    CHECK(tree.empty());
    CHECK(tree.largest() == 0);
    CHECK(tree.first(1) == nullptr);
    CHECK(tree.last(1) == nullptr);
  }

  TEST_CASE("the tree of extents finds what a sorted list finds, whatever was done to it") {
    std::mt19937_64 random(42);
    const auto below = [&random](std::uint64_t bound) { return random() % bound; };
    extent_tree tree;
    std::deque<extent> nodes(500);
    std::vector<extent*> free;
    for (auto& node : nodes) free.push_back(&node);
    std::map<std::uint64_t, extent*> model;

    for (int step = 0; step < 20'000; ++step) {
      const bool grow = step / 2'000 % 2 == 0;
      const auto dice = below(10);
      if (!free.empty() && (model.empty() || dice < (grow ? 5U : 2U))) {
        const auto begin = below(1'000'000) * 1'000;
        if (model.contains(begin)) continue;
        auto* const node = free.back();
        free.pop_back();
        node->begin = begin;
        node->size = 1 + below(999);
        tree.insert(*node);
        model.emplace(begin, node);
      } else if (!model.empty()) {
        auto at = model.lower_bound(below(1'000'000) * 1'000);
        if (at == model.end()) at = model.begin();
        if (dice < 7) {
          tree.erase(*at->second);
          free.push_back(at->second);
          model.erase(at);
        } else {
          at->second->size = 1 + below(999);
          extent_tree::resized(*at->second);
        }
      }

      const auto size = below(20) == 0 ? 1'000 : 1 + below(999);
      extent* first = nullptr;
      extent* last = nullptr;
      std::size_t largest = 0;
      for (const auto& [begin, node] : model) {
        largest = std::max(largest, node->size);
        if (node->size < size) continue;
        if (first == nullptr) first = node;
        last = node;
      }
      REQUIRE(tree.first(size) == first);
      REQUIRE(tree.last(size) == last);
      REQUIRE(tree.largest() == largest);
      REQUIRE(tree.empty() == model.empty());

      if (step % 50 != 0) continue;
      auto* up = tree.first(size);
      for (const auto& [begin, node] : model) {
        if (node->size < size) continue;
        REQUIRE(up == node);
        up = extent_tree::following(*up, size);
      }
      REQUIRE(up == nullptr);
      auto* down = tree.last(size);
      for (auto at = model.rbegin(); at != model.rend(); ++at) {
        if (at->second->size < size) continue;
        REQUIRE(down == at->second);
        down = extent_tree::preceding(*down, size);
      }
      REQUIRE(down == nullptr);
    }
  }
}
