#include <headrace/stream/tensor.hpp>

namespace headrace {

tensor::tensor(tensor&& other) noexcept
    : info_(std::move(other.info_)),
      shape_(std::move(other.shape_)),
      memory_(std::move(other.memory_)) {
  if (std::exchange(other.exposed_, false)) memory_.detach();
}

tensor& tensor::operator=(tensor&& other) noexcept {
  if (this != &other) {
    info_ = std::move(other.info_);
    shape_ = std::move(other.shape_);
    memory_ = std::move(other.memory_);
    exposed_ = false;
    if (std::exchange(other.exposed_, false)) memory_.detach();
  }
  return *this;
}

std::span<const std::uint64_t> tensor::shape() const noexcept {
  if (shape_ != nullptr) return *shape_;
  if (info_ != nullptr) return info_->shape;
  return {};
}

}  // namespace headrace
