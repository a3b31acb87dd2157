#include <headrace/torch/to_tensor.hpp>

#include <headrace/base/error.hpp>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace headrace::torch {
namespace {

[[noreturn]] void refuse(const tensor& arrived, const std::string& why) {
  throw error(errc::unsupported, "tensor '" + std::string(arrived.name()) + "': " + why);
}

/// The extents as torch counts them.
std::vector<std::int64_t> sizes_of(const tensor& arrived) {
  std::vector<std::int64_t> sizes;
  sizes.reserve(arrived.shape().size());
  for (const std::uint64_t extent : arrived.shape()) {
    if (extent > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      refuse(arrived, "an extent of " + std::to_string(extent) + " is more than torch can count");
    }
    sizes.push_back(static_cast<std::int64_t>(extent));
  }
  if (arrived.dtype() == dtype::f4) {
    if (sizes.empty() || sizes.back() % 2 != 0) {
      refuse(arrived, "torch packs two F4 elements, and its last extent is odd");
    }
    sizes.back() /= 2;
  }
  return sizes;
}

void drop(void* held) noexcept { delete static_cast<tensor*>(held); }

/// Of a device: what torch has queued there may still read or write the memory, on any stream.
void drop_after_device(void* held) noexcept {
  const auto index = static_cast<c10::DeviceIndex>(static_cast<tensor*>(held)->device().index);
  try {
    c10::impl::VirtualGuardImpl(::torch::kCUDA).synchronizeDevice(index);
  } catch (...) {  // NOLINT(bugprone-empty-catch): the context is dead, and what it ran with it
  }
  drop(held);
}

}  // namespace

std::optional<::torch::ScalarType> to_scalar_type(dtype type) noexcept {
  switch (type) {
    case dtype::boolean:
      return ::torch::kBool;
    case dtype::f4:
      return ::torch::kFloat4_e2m1fn_x2;
    case dtype::f6_e2m3:
    case dtype::f6_e3m2:
      return std::nullopt;
    case dtype::u8:
      return ::torch::kUInt8;
    case dtype::i8:
      return ::torch::kInt8;
    case dtype::f8_e5m2:
      return ::torch::kFloat8_e5m2;
    case dtype::f8_e4m3:
      return ::torch::kFloat8_e4m3fn;
    case dtype::f8_e8m0:
      return ::torch::kFloat8_e8m0fnu;
    case dtype::f8_e4m3fnuz:
      return ::torch::kFloat8_e4m3fnuz;
    case dtype::f8_e5m2fnuz:
      return ::torch::kFloat8_e5m2fnuz;
    case dtype::i16:
      return ::torch::kInt16;
    case dtype::u16:
      return ::torch::kUInt16;
    case dtype::f16:
      return ::torch::kFloat16;
    case dtype::bf16:
      return ::torch::kBFloat16;
    case dtype::i32:
      return ::torch::kInt32;
    case dtype::u32:
      return ::torch::kUInt32;
    case dtype::f32:
      return ::torch::kFloat32;
    case dtype::c64:
      return ::torch::kComplexFloat;
    case dtype::f64:
      return ::torch::kFloat64;
    case dtype::i64:
      return ::torch::kInt64;
    case dtype::u64:
      return ::torch::kUInt64;
  }
  return std::nullopt;
}

::torch::Device to_device(device place) {
  if (place.kind == device::type::cpu) return ::torch::kCPU;
  if (place.index > static_cast<std::uint32_t>(std::numeric_limits<c10::DeviceIndex>::max())) {
    throw error(errc::invalid_request, "torch has no device " + place.to_string());
  }
  return {::torch::kCUDA, static_cast<c10::DeviceIndex>(place.index)};
}

::torch::Tensor to_tensor(tensor&& arrived) {
  const auto type = to_scalar_type(arrived.dtype());
  if (!type) {
    refuse(arrived, "torch has no dtype for " + std::string(to_string(arrived.dtype())) +
                        ": read its bytes, or leave it out of the selection");
  }
  const std::vector<std::int64_t> sizes = sizes_of(arrived);
  const auto options = ::torch::TensorOptions().dtype(*type).device(to_device(arrived.device()));
  if (arrived.bytes().empty()) {
    const tensor dropped = std::move(arrived);
    return at::empty(sizes, options);
  }
  const bool arrived_on_cpu = options.device().is_cpu();
  auto held = std::make_unique<tensor>(std::move(arrived));
  auto maker = at::for_blob(held->bytes().data(), sizes);
  maker.options(options).target_device(options.device());
  const auto deleter = arrived_on_cpu ? &drop : &drop_after_device;
  maker.context(held.release(), deleter);
  return maker.make_tensor();
}

}  // namespace headrace::torch
