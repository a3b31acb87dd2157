#include <headrace/memory/host_block.hpp>

#include "memory/arena_state.hpp"

namespace headrace {

void host_block::detach() noexcept {
  if (extent_ != nullptr) state_->detach(*extent_);
}

void host_block::release() noexcept {
  data_ = nullptr;
  state_->release(*std::exchange(extent_, nullptr), std::exchange(size_, 0));
  state_ = nullptr;
}

}  // namespace headrace
