#include <headrace/memory/host_arena.hpp>

#include "memory/arena_state.hpp"
#include "memory/pool_state.hpp"

#include <headrace/base/sizes.hpp>

#include <limits>
#include <utility>

namespace headrace {

host_arena::host_arena(std::shared_ptr<detail::arena_state> state,
                       std::weak_ptr<detail::pool_state> pool, std::size_t limit,
                       std::size_t largest_block, std::weak_ptr<release_listener> listener)
    : state_(std::move(state)),
      pool_(std::move(pool)),
      limit_(limit),
      opening_(state_->open(limit, largest_block, std::move(listener))) {}

host_arena::~host_arena() { close(); }

std::size_t host_arena::footprint(std::size_t size) noexcept {
  const std::size_t granule = size >= 1_MiB ? detail::page_size : 64;
  // Nothing so large can be had; the rounded size must not wrap around to a small one.
  if (size > std::numeric_limits<std::size_t>::max() - granule) size -= granule;
  return static_cast<std::size_t>(detail::align_up(size, granule));
}

std::size_t host_arena::limit() const noexcept { return limit_; }

bool host_arena::fits(std::size_t size) const noexcept { return state_->fits(opening_, size); }

result<host_block> host_arena::allocate(std::size_t size) {
  return state_->allocate(opening_, size);
}

std::size_t host_arena::warm_ahead(std::size_t size, std::size_t step) noexcept {
  return state_->warm_ahead(opening_, size, step);
}

void host_arena::charge(std::size_t size) noexcept { state_->charge(opening_, size); }

void host_arena::uncharge(std::size_t size) noexcept { state_->uncharge(opening_, size); }

void host_arena::notify_on_release() noexcept { state_->notify_on_release(opening_); }

memory_usage host_arena::usage() const noexcept { return state_->usage(opening_); }

void host_arena::close() noexcept {
  if (!state_->close(opening_)) return;
  if (const auto pool = pool_.lock()) {
    pool->retire(state_);
  } else {
    state_->keep(0);
  }
}

}  // namespace headrace
