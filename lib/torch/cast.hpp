#pragma once

#include <torch/types.h>

#include <optional>

namespace headrace::torch::detail {

/// Whether `dtype` is for tensors of this type: floating-point ones that torch can cast.
[[nodiscard]] inline bool casts(::torch::ScalarType from) noexcept {
  return c10::isFloatingType(from) && from != ::torch::kFloat4_e2m1fn_x2;
}

/// `whole` as `dtype`, where that is set and for tensors of its kind.
[[nodiscard]] inline ::torch::Tensor cast(::torch::Tensor whole,
                                          std::optional<::torch::ScalarType> dtype) {
  if (!dtype || !casts(whole.scalar_type())) return whole;
  return whole.to(*dtype);
}

}  // namespace headrace::torch::detail
