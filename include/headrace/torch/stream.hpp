#pragma once

#include <headrace/base/export.hpp>
#include <headrace/coro/async_generator.hpp>
#include <headrace/stream/model.hpp>
#include <headrace/stream/stream_options.hpp>

#include <torch/types.h>

#include <optional>
#include <string>
#include <utility>

namespace headrace::torch {

/// A tensor and the name that the checkpoint gives it.
using named_tensor = std::pair<std::string, ::torch::Tensor>;

/// Streams a model as torch's tensors, without copies.
///
/// As `model::stream`, with `to_tensor` done to each. `dtype` casts floating-point tensors, on the
/// device where they land, and leaves the others alone: such a tensor is a copy, made on the thread
/// of `next()`. Not for `float4_e2m1fn_x2`, which torch cannot cast. Errors: those of
/// `model::stream`, `unsupported` for a dtype that torch lacks.
///
///     auto tensors = headrace::torch::stream(model, {}, ::torch::kBFloat16);
///     while (auto* t = co_await tensors.next()) weights.insert(std::move(*t));
[[nodiscard]] HEADRACE_API async_generator<named_tensor> stream(
    const model& opened, stream_options options = {},
    std::optional<::torch::ScalarType> dtype = std::nullopt);

}  // namespace headrace::torch
