// What a build without the headers of CUDA says of it.

#include "device/pinned_memory.hpp"

#include <headrace/device/copy_engine.hpp>
#include <headrace/device/cuda_device.hpp>

namespace headrace {

namespace detail {

class cuda_context {};

namespace {

error without_cuda() {
  return error(
      errc::unsupported,
      "this build has no CUDA support: build headrace where the CUDA Toolkit's headers are "
      "(-Dcuda=enabled)");
}

}  // namespace

result<void> pin(const cuda_device&, std::span<std::byte>) { return failure{without_cuda()}; }

void unpin(const cuda_device&, std::byte*) noexcept {}

bool left_behind_by_fork(const cuda_device&) noexcept { return false; }

}  // namespace detail

// No device is ever opened: what follows `open` is there to be linked.

result<std::shared_ptr<cuda_device>> cuda_device::open(std::uint32_t) {
  return failure{detail::without_cuda()};
}

cuda_device::~cuda_device() = default;

std::uint32_t cuda_device::index() const noexcept { return 0; }

const std::string& cuda_device::name() const noexcept {
  static const std::string none;
  return none;
}

std::shared_ptr<allocator> cuda_device::memory(blocking_pool&, cuda_stream, std::size_t) {
  return nullptr;
}

result<void> cuda_device::check(cuda_stream) const { return failure{detail::without_cuda()}; }

result<void> cuda_device::read(std::span<std::byte>, const std::byte*) const {
  return failure{detail::without_cuda()};
}

result<std::unique_ptr<copy_engine>> make_cuda_copy_engine(io_context&,
                                                           std::shared_ptr<cuda_device>) {
  return failure{detail::without_cuda()};
}

}  // namespace headrace
