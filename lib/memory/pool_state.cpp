#include "memory/pool_state.hpp"

#include <headrace/base/sizes.hpp>

#include <algorithm>
#include <iterator>
#include <utility>

namespace headrace::detail {

namespace {

// Less is not worth keeping an arena for.
constexpr std::size_t least_idle = 2_MiB;
// More splinters than this between held blocks would be a burden on the next stream's limit.
constexpr std::size_t most_stuck = 1_MiB;

}  // namespace

std::shared_ptr<arena_state> pool_state::take() {
  const std::lock_guard lock(mutex_);
  if (!kept_.empty()) {
    auto latest = std::move(kept_.back().arena);
    kept_.pop_back();
    return latest;
  }
  std::erase_if(all_, [](const auto& arena) { return arena.expired(); });
  auto fresh = std::make_shared<arena_state>();
  all_.push_back(fresh);
  kept_.reserve(all_.size());  // so that nothing can fail when a stream ends
  return fresh;
}

void pool_state::retire(const std::shared_ptr<arena_state>& ended) noexcept {
  const auto idle = ended->idle();
  const auto granted = std::min(idle.whole, idle_limit_);
  if (granted < least_idle || idle.stuck > most_stuck) {
    ended->keep(0);
    return;
  }
  ended->keep(granted);

  std::shared_ptr<arena_state> evicted;
  for (;;) {
    {
      const std::lock_guard lock(mutex_);
      auto sum = granted;
      for (const auto& kept : kept_) sum += kept.idle;
      if (sum <= idle_limit_) {
        kept_.push_back({ended, granted});
        return;
      }
      evicted = std::move(kept_.front().arena);
      kept_.erase(kept_.begin());
    }
    evicted->keep(0);  // its blocks may keep it
    evicted.reset();
  }
}

void pool_state::trim() {
  std::vector<kept_arena> evicted;
  std::vector<std::shared_ptr<arena_state>> others;
  {
    const std::lock_guard lock(mutex_);
    evicted = std::exchange(kept_, {});
    kept_.reserve(all_.size());
    for (const auto& arena : all_) {
      if (auto alive = arena.lock()) others.push_back(std::move(alive));
    }
  }
  for (const auto& kept : evicted) kept.arena->keep(0);
  evicted.clear();
  for (const auto& arena : others) arena->drop_idle();
}

memory_usage pool_state::usage() const {
  std::vector<std::shared_ptr<arena_state>> arenas;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& arena : all_) {
      if (auto alive = arena.lock()) arenas.push_back(std::move(alive));
    }
  }
  memory_usage sum;
  for (const auto& arena : arenas) {
    const auto one = arena->usage();
    sum.live += one.live;
    sum.held += one.held;
    sum.idle += one.idle;
    sum.extra += one.extra;
    sum.mapped += one.mapped;
  }
  return sum;
}

}  // namespace headrace::detail
