#include <headrace/memory/host_pool.hpp>

#include "memory/pool_state.hpp"

#include <utility>

namespace headrace {

host_pool::host_pool(std::size_t idle_limit)
    : state_(std::make_shared<detail::pool_state>(idle_limit)) {}

host_pool::~host_pool() = default;

std::shared_ptr<host_arena> host_pool::open(std::size_t limit,
                                            std::weak_ptr<release_listener> listener,
                                            std::size_t largest_block) {
  return std::shared_ptr<host_arena>(
      new host_arena(state_->take(), state_, limit, largest_block, std::move(listener)));
}

void host_pool::trim() { state_->trim(); }

memory_usage host_pool::usage() const { return state_->usage(); }

}  // namespace headrace
