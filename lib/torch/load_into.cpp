#include <headrace/torch/load_into.hpp>

#include <headrace/base/error.hpp>
#include <headrace/coro/async_generator.hpp>
#include <headrace/torch/stream.hpp>
#include <headrace/torch/to_tensor.hpp>

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <unordered_map>
#include <utility>

namespace headrace::torch {
namespace {

constexpr std::size_t named_at_most = 10;

/// What tensors take the place of, by name in the module.
using entries = std::map<std::string, ::torch::Tensor, std::less<>>;

entries entries_of(const ::torch::nn::Module& module) {
  entries found;
  for (const auto& item : module.named_parameters()) found.emplace(item.key(), item.value());
  for (const auto& item : module.named_buffers()) found.emplace(item.key(), item.value());
  return found;
}

std::string join(std::span<const std::string> names) {
  std::string text;
  for (const std::string& name : names.first(std::min(names.size(), named_at_most))) {
    text += (text.empty() ? "" : ", ") + name;
  }
  if (names.size() > named_at_most) text += ", …";
  return text;
}

std::string shape_text(std::span<const std::int64_t> extents) {
  std::string text;
  for (const std::int64_t extent : extents) {
    text += (text.empty() ? "" : ", ") + std::to_string(extent);
  }
  return "[" + text + "]";
}

/// A tensor's shape as torch would have it.
std::vector<std::int64_t> shape_in_torch(const tensor_info& info) {
  std::vector<std::int64_t> shape(info.shape.begin(), info.shape.end());
  if (info.dtype == dtype::f4 && !shape.empty()) shape.back() /= 2;
  return shape;
}

/// Where each wanted tensor goes, and what has no counterpart.
struct placement {
  std::unordered_map<std::string, ::torch::Tensor> targets;  ///< By the tensor's own name.
  std::vector<selection> wanted;
  load_result rest;
};

void check_fits(const tensor_info& info, const std::string& key, const ::torch::Tensor& entry,
                const load_options& options) {
  if (!to_scalar_type(info.dtype)) {
    throw error(errc::unsupported, "tensor '" + info.name + "': torch has no dtype for " +
                                       std::string(to_string(info.dtype)) +
                                       ": skip it in key_mapping");
  }
  const std::vector<std::int64_t> shape = shape_in_torch(info);
  if (!std::ranges::equal(shape, entry.sizes())) {
    throw error(errc::invalid_request, "tensor '" + info.name + "' has the shape " +
                                           shape_text(shape) + ", and '" + key +
                                           "' of the module " + shape_text(entry.sizes()));
  }
  if (entry.is_meta() && !options.device) {
    throw error(errc::invalid_request, "'" + key +
                                           "' of the module is on the meta device: say where its "
                                           "tensor is to go (load_options::device)");
  }
}

placement place(const entries& module, const model& opened, const load_options& options) {
  placement planned;
  std::map<std::string, std::string> came_from;  // entry: tensor
  for (const tensor_info& info : opened.tensors()) {
    std::optional<std::string> key = info.name;
    if (options.key_mapping) key = options.key_mapping(info.name);
    if (!key) continue;
    const auto entry = module.find(*key);
    if (entry == module.end()) {
      planned.rest.unexpected_keys.push_back(std::move(*key));
      continue;
    }
    const auto [earlier, first] = came_from.emplace(*key, info.name);
    if (!first) {
      throw error(errc::invalid_request, "tensors '" + earlier->second + "' and '" + info.name +
                                             "' are both mapped to '" + *key + "' of the module");
    }
    check_fits(info, *key, entry->second, options);
    planned.targets.emplace(info.name, entry->second);
    planned.wanted.push_back({info.name});
  }
  // Entries that share a tensor are loaded together, whichever of their names the checkpoint has.
  std::set<const c10::TensorImpl*> loaded;
  for (const auto& [name, entry] : planned.targets) loaded.insert(entry.unsafeGetTensorImpl());
  for (const auto& [key, entry] : module) {
    if (!loaded.contains(entry.unsafeGetTensorImpl())) planned.rest.missing_keys.push_back(key);
  }
  return planned;
}

void refuse_differences(const load_result& rest, const model& opened) {
  std::string text;
  if (!rest.missing_keys.empty()) {
    text = std::to_string(rest.missing_keys.size()) +
           " missing (the module has them, the checkpoint does not): " + join(rest.missing_keys);
  }
  if (!rest.unexpected_keys.empty()) {
    text +=
        (text.empty() ? "" : "; ") + std::to_string(rest.unexpected_keys.size()) +
        " unexpected (the checkpoint has them, the module does not): " + join(rest.unexpected_keys);
  }
  if (text.empty()) return;
  error_context where;
  where.uri = opened.uri();
  throw error(errc::not_found,
              text + ". Rename or skip with key_mapping, or load with strict = false",
              std::move(where));
}

/// Where the stream itself delivers: where all of it goes, otherwise host memory.
device landing(const placement& planned, const load_options& options) {
  std::optional<::torch::Device> common = options.device;
  if (!common) {
    for (const auto& [name, entry] : planned.targets) {
      if (common && *common != entry.device()) return cpu();
      common = entry.device();
    }
  }
  if (!common || !common->is_cuda()) return cpu();
  return cuda(common->has_index() ? static_cast<std::uint32_t>(common->index()) : 0);
}

/// Gives an entry the memory, the dtype and the device of `arrived`, whoever holds it.
void assign(::torch::Tensor entry, const ::torch::Tensor& arrived) {
  if (!entry.is_meta()) {
    entry.set_data(arrived);
    return;
  }
  // `set_data` refuses to leave the meta device, although nothing of the old tensor stays.
  entry.unsafeGetTensorImpl()->shallow_copy_from(arrived.getIntrusivePtr());
}

struct deliver {
  const placement* planned;
  const load_options* options;

  void operator()(named_tensor& arrived) const {
    const ::torch::Tensor& entry = planned->targets.at(arrived.first);
    const ::torch::Device target = options->device.value_or(entry.device());
    assign(entry, std::exchange(arrived.second, {}).to(target));
  }
};

}  // namespace

task<load_result> load_into(::torch::nn::Module& module, model opened, load_options options) {
  placement planned = place(entries_of(module), opened, options);
  if (options.strict) refuse_differences(planned.rest, opened);
  if (planned.wanted.empty()) co_return std::move(planned.rest);  // an empty selection is: all
  stream_options wanted;
  wanted.device = landing(planned, options);
  wanted.memory_limit = options.memory_limit;
  wanted.tensors = std::exchange(planned.wanted, {});
  wanted.on_progress = options.on_progress;
  auto tensors = stream(opened, std::move(wanted), options.dtype);
  co_await for_each(std::move(tensors), deliver{&planned, &options});
  co_return std::move(planned.rest);
}

}  // namespace headrace::torch
