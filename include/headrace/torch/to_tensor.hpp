#pragma once

#include <headrace/base/export.hpp>
#include <headrace/device/device.hpp>
#include <headrace/safetensors/dtype.hpp>
#include <headrace/stream/tensor.hpp>

#include <torch/types.h>

#include <optional>

/// headrace for libtorch: a library of its own, `libheadrace-torch`. Where a program imports the
/// namespace `headrace` as a whole, libtorch's own names need their leading colons.
namespace headrace::torch {

/// What torch calls these elements: all of the format's dtypes but `f6_e2m3` and `f6_e3m2`, for
/// which it has no name. `f4` is `float4_e2m1fn_x2`, whose elements are pairs.
[[nodiscard]] HEADRACE_API std::optional<::torch::ScalarType> to_scalar_type(dtype type) noexcept;

/// What torch calls this device. Throws `invalid_request` for an index that torch cannot hold.
[[nodiscard]] HEADRACE_API ::torch::Device to_device(device place);

/// Hands a tensor over to torch without a copy: the result shares its memory and gives it back when
/// the last torch tensor that refers to it is gone, on any thread. On a CUDA device that waits for
/// what torch has queued there: drop weights where a pause does no harm.
///
/// Same shape, dense, without gradient; of `f4` torch counts pairs, so the last extent is halved. A
/// tensor without elements has no memory to share and becomes a new one. Throws `unsupported` for
/// dtypes that torch lacks (`f6_e2m3`, `f6_e3m2`) and for `f4` with an odd last extent; the tensor
/// is untouched then, so that `bytes()` can still be read. Threads: any.
///
///     while (auto* t = co_await tensors.next()) {
///       weights[std::string(t->name())] = headrace::torch::to_tensor(std::move(*t));
///     }
[[nodiscard]] HEADRACE_API ::torch::Tensor to_tensor(tensor&& arrived);

}  // namespace headrace::torch
