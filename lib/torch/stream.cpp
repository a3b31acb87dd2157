#include <headrace/torch/stream.hpp>

#include "torch/cast.hpp"

#include <headrace/torch/to_tensor.hpp>

#include <memory>

namespace headrace::torch {
namespace {

/// Shared with what closes it, which runs when the body below is gone.
using source = std::shared_ptr<async_generator<tensor>>;

async_generator<named_tensor> convert(source tensors, std::optional<::torch::ScalarType> dtype) {
  while (auto* arrived = co_await tensors->next()) {
    std::string name(arrived->name());
    named_tensor given(std::move(name), detail::cast(to_tensor(std::move(*arrived)), dtype));
    co_yield std::move(given);
  }
}

task<void> close(source tensors) { co_await tensors->close(); }

}  // namespace

async_generator<named_tensor> stream(const model& opened, stream_options options,
                                     std::optional<::torch::ScalarType> dtype) {
  auto tensors = std::make_shared<async_generator<tensor>>(opened.stream(std::move(options)));
  auto converted = convert(tensors, dtype);
  converted.at_close(close(std::move(tensors)));
  return converted;
}

}  // namespace headrace::torch
