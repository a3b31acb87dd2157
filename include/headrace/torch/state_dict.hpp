#pragma once

#include <headrace/base/export.hpp>
#include <headrace/coro/task.hpp>
#include <headrace/stream/model.hpp>
#include <headrace/stream/stream_options.hpp>

#include <torch/types.h>
// Uses what the header above brings, and does not say so.
#include <torch/ordered_dict.h>

#include <optional>
#include <string>

namespace headrace::torch {

/// Loads a whole model: its tensors by name, in the order in which the files hold them.
///
/// `options` selects and says where to; `dtype` and errors are those of `headrace::torch::stream`.
/// What is dropped when it fails is given back.
///
///     auto weights = co_await headrace::torch::state_dict(model, {.device = headrace::cuda(0)});
///     linear->weight.set_data(weights["lm_head.weight"]);
[[nodiscard]] HEADRACE_API task<::torch::OrderedDict<std::string, ::torch::Tensor>> state_dict(
    model opened, stream_options options = {},
    std::optional<::torch::ScalarType> dtype = std::nullopt);

}  // namespace headrace::torch
