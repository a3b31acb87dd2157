#include <headrace/stream/tensor.hpp>

namespace headrace {

tensor::tensor(tensor&& other) noexcept
    : info_(std::move(other.info_)),
      shape_(std::move(other.shape_)),
      device_(std::exchange(other.device_, cpu())),
      memory_(std::move(other.memory_)),
      elsewhere_(std::move(other.elsewhere_)),
      size_(std::exchange(other.size_, 0)) {
  if (std::exchange(other.exposed_, false)) detach();
}

tensor& tensor::operator=(tensor&& other) noexcept {
  if (this != &other) {
    info_ = std::move(other.info_);
    shape_ = std::move(other.shape_);
    device_ = std::exchange(other.device_, cpu());
    memory_ = std::move(other.memory_);
    elsewhere_ = std::move(other.elsewhere_);
    size_ = std::exchange(other.size_, 0);
    exposed_ = false;
    if (std::exchange(other.exposed_, false)) detach();
  }
  return *this;
}

std::span<const std::uint64_t> tensor::shape() const noexcept {
  if (shape_ != nullptr) return *shape_;
  if (info_ != nullptr) return info_->shape;
  return {};
}

}  // namespace headrace
