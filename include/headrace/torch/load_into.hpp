#pragma once

#include <headrace/base/export.hpp>
#include <headrace/base/sizes.hpp>
#include <headrace/coro/task.hpp>
#include <headrace/stream/model.hpp>
#include <headrace/stream/progress.hpp>

#include <torch/nn/module.h>
#include <torch/types.h>

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace headrace::torch {

/// How `load_into` loads.
struct load_options {
  /// Where everything goes. Unset: each tensor to the device of the entry that it replaces.
  std::optional<::torch::Device> device = std::nullopt;

  /// What floating-point tensors are cast to. Unset: what the checkpoint holds.
  std::optional<::torch::ScalarType> dtype = std::nullopt;

  /// Whether an entry without a tensor, or a tensor without an entry, is an error.
  bool strict = true;

  /// The entry's name for a tensor's; nothing skips the tensor. Called once for each, on the thread
  /// that awaits `load_into`.
  std::function<std::optional<std::string>(std::string_view)> key_mapping = {};

  std::size_t memory_limit = 1_GiB;                       ///< As in `stream_options`.
  std::function<void(const progress&)> on_progress = {};  ///< As in `stream_options`.
};

/// What did not find its counterpart; empty after a strict `load_into`.
struct load_result {
  std::vector<std::string> missing_keys;     ///< Entries of the module that no tensor came for.
  std::vector<std::string> unexpected_keys;  ///< Tensors, by their mapped names, without an entry.
};

/// Loads a model into a module: each tensor takes the place of the parameter or buffer of its name
/// as it arrives.
///
/// The entry's memory and dtype become the tensor's, as `load_state_dict(assign=True)` has it in
/// Python: nothing is copied where the tensor lands on the right device. Who holds the entry sees
/// the new values, members such as `linear->weight` among them, and `requires_grad` stays; a
/// gradient of another shape, dtype or device than the new values should be dropped first
/// (`zero_grad()`). An entry on the `meta` device needs `device`.
///
/// All that the headers tell is checked before a weight moves and the module is touched: throws
/// `headrace::error` with `invalid_request` (shapes that differ, both named; two tensors for one
/// entry; a `meta` entry without `device`), `not_found` (strict, counting and naming up to ten of
/// the missing and of the unexpected), `unsupported` (a dtype that torch lacks), and what
/// `model::stream` throws. After that, or a stop, while weights move, some entries are new and some
/// old, each of them whole.
///
/// Entries that share one tensor (tied weights) are all loaded by a tensor for one of them.
///
/// `module` must outlive the task and not be used meanwhile; it is touched on the executor that
/// awaits the task.
///
///     auto found = co_await headrace::torch::load_into(*net, model, {.strict = false});
///     for (const auto& name : found.missing_keys) std::cerr << "not loaded: " << name << '\n';
[[nodiscard]] HEADRACE_API task<load_result> load_into(::torch::nn::Module& module, model opened,
                                                       load_options options = {});

}  // namespace headrace::torch
