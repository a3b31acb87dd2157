#pragma once

#include "memory/arena_state.hpp"

#include <headrace/memory/host_arena.hpp>

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

namespace headrace::detail {

/// What a `host_pool` is a handle to: the warm arenas of ended streams, and the whereabouts of all
/// others.
///
/// Its mutex is never locked with an arena's, except to read an arena's numbers.
class pool_state {
 public:
  explicit pool_state(std::size_t idle_limit) : idle_limit_(idle_limit) {}

  [[nodiscard]] std::shared_ptr<arena_state> take();
  void retire(const std::shared_ptr<arena_state>& ended) noexcept;
  void trim();
  [[nodiscard]] memory_usage usage() const;

 private:
  struct kept_arena {
    std::shared_ptr<arena_state> arena;
    std::size_t idle;
  };

  const std::size_t idle_limit_;
  mutable std::mutex mutex_;
  std::vector<kept_arena> kept_;  // the latest last
  std::vector<std::weak_ptr<arena_state>> all_;
};

}  // namespace headrace::detail
