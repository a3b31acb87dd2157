#include <headrace/torch/state_dict.hpp>

#include <headrace/torch/stream.hpp>

#include <unordered_map>
#include <utility>

namespace headrace::torch {
namespace {

using weights = std::unordered_map<std::string, ::torch::Tensor>;

struct keep {
  weights* into;
  void operator()(named_tensor& arrived) const { into->insert(std::move(arrived)); }
};

}  // namespace

task<::torch::OrderedDict<std::string, ::torch::Tensor>> state_dict(
    model opened, stream_options options, std::optional<::torch::ScalarType> dtype) {
  weights arrived;
  auto tensors = stream(opened, std::move(options), dtype);
  co_await for_each(std::move(tensors), keep{&arrived});
  ::torch::OrderedDict<std::string, ::torch::Tensor> ordered;
  ordered.reserve(arrived.size());
  for (const tensor_info& info : opened.tensors()) {
    auto found = arrived.find(info.name);
    if (found != arrived.end()) ordered.insert(found->first, std::move(found->second));
  }
  co_return ordered;
}

}  // namespace headrace::torch
