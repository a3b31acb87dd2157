#include "stream/plan.hpp"

#include <fnmatch.h>

#include <algorithm>
#include <limits>

namespace headrace::detail {
namespace {

/// A slice's extents, checked and complete: one for each dimension.
result<std::vector<slice_extent>> resolve_slice(const tensor_info& info,
                                                std::span<const slice_extent> wanted) {
  const auto refuse = [&info](const std::string& why) {
    return failure{error(errc::invalid_request, "cannot take that slice of the tensor " +
                                                    json_quote(info.name) + ": " + why)};
  };
  if (wanted.size() > info.shape.size()) {
    return refuse("it has " + std::to_string(info.shape.size()) + " dimensions, the slice " +
                  std::to_string(wanted.size()));
  }
  std::vector<slice_extent> resolved;
  resolved.reserve(info.shape.size());
  for (std::size_t at = 0; at < info.shape.size(); ++at) {
    const std::uint64_t extent = info.shape[at];
    slice_extent part = at < wanted.size() ? wanted[at] : slice_extent{};
    part.end = std::min(part.end, extent);
    if (part.begin > part.end) {
      return refuse("dimension " + std::to_string(at) + " has " + std::to_string(extent) +
                    " elements, the slice begins at " + std::to_string(part.begin));
    }
    resolved.push_back(part);
  }
  return resolved;
}

/// The runs of a slice. The innermost dimensions that are taken whole make one run; the first
/// partial dimension outside of them becomes its count; all dimensions further out are enumerated.
result<std::vector<strided_run>> runs_of_slice(const tensor_info& info, byte_range place,
                                               std::span<const slice_extent> slice) {
  const auto rank = info.shape.size();
  const std::uint64_t bits_each = bits(info.dtype);

  // Elements from one index to the next, for each dimension.
  std::vector<std::uint64_t> strides(rank, 1);
  for (std::size_t at = rank; at-- > 1;) strides[at - 1] = strides[at] * info.shape[at];

  // `inner`: the outermost dimension of the contiguous run.
  std::size_t inner = rank;
  while (inner > 0 && slice[inner - 1].begin == 0 && slice[inner - 1].end == info.shape[inner - 1])
    --inner;
  if (inner > 0) --inner;  // a partial dimension is contiguous too, over what it takes

  const std::uint64_t run_elements = (slice[inner].end - slice[inner].begin) * strides[inner];
  std::vector<std::uint64_t> index(rank, 0);
  std::uint64_t first = 0;
  for (std::size_t at = 0; at < rank; ++at) {
    index[at] = slice[at].begin;
    first += slice[at].begin * strides[at];
  }
  const auto whole_bytes = [bits_each](std::uint64_t elements) {
    return elements * bits_each % 8 == 0;
  };
  const auto in_bytes = [bits_each](std::uint64_t elements) { return elements * bits_each / 8; };

  const std::uint64_t repeats = inner > 0 ? slice[inner - 1].end - slice[inner - 1].begin : 1;
  // A single run has no next one: where that would begin does not have to be a whole byte.
  const std::uint64_t step = repeats > 1 ? strides[inner - 1] : run_elements;
  std::vector<strided_run> runs;
  for (;;) {
    if (!whole_bytes(first) || !whole_bytes(run_elements) || !whole_bytes(step)) {
      return failure{error(errc::invalid_request, "cannot take that slice of the tensor " +
                                                      json_quote(info.name) +
                                                      ": it cuts through bytes, elements have " +
                                                      std::to_string(bits_each) + " bits")};
    }
    runs.push_back(
        {place.begin + in_bytes(first), in_bytes(run_elements), in_bytes(step), repeats});
    // The next combination of the dimensions further out than the counted one.
    std::size_t at = inner > 0 ? inner - 1 : 0;
    bool more = false;
    while (at-- > 0) {
      if (++index[at] < slice[at].end) {
        first += strides[at];
        more = true;
        break;
      }
      first -= (slice[at].end - 1 - slice[at].begin) * strides[at];
      index[at] = slice[at].begin;
    }
    if (!more) return runs;
  }
}

result<planned_tensor> plan_tensor(const catalogue& model, std::uint32_t number,
                                   std::span<const slice_extent> wanted) {
  const tensor_info& info = model.tensors[number];
  const byte_range place = model.place_of(info);
  planned_tensor planned{
      .tensor = number, .file = info.file, .size = info.size(), .runs = {}, .shape = nullptr};
  if (wanted.empty()) {
    if (!place.empty()) planned.runs.push_back({place.begin, place.size, place.size, 1});
    return planned;
  }
  auto slice = resolve_slice(info, wanted);
  if (!slice) return failure{slice.error()};
  std::vector<std::uint64_t> shape;
  std::uint64_t elements = 1;
  for (const auto& part : *slice) {
    shape.push_back(part.end - part.begin);
    elements *= shape.back();
  }
  planned.shape = std::make_shared<const std::vector<std::uint64_t>>(std::move(shape));
  planned.size = 0;
  if (elements == 0) return planned;
  auto runs = runs_of_slice(info, place, *slice);
  if (!runs) return failure{runs.error()};
  planned.runs = std::move(*runs);
  for (const auto& run : planned.runs) planned.size += run.total();
  return planned;
}

}  // namespace

result<stream_plan> make_plan(const catalogue& model, std::span<const selection> wanted,
                              delivery order) {
  stream_plan plan;
  const auto add = [&](std::uint32_t number, std::span<const slice_extent> slice) -> result<void> {
    auto planned = plan_tensor(model, number, slice);
    if (!planned) return failure{planned.error()};
    plan.total_bytes += planned->size;
    plan.largest_tensor = std::max(plan.largest_tensor, planned->size);
    plan.tensors.push_back(std::move(*planned));
    return {};
  };

  if (wanted.empty()) {
    plan.tensors.reserve(model.tensors.size());
    for (std::uint32_t number = 0; number < model.tensors.size(); ++number) {
      auto added = add(number, {});
      if (!added) return failure{added.error()};
    }
    return plan;
  }

  std::vector<bool> taken(model.tensors.size(), false);
  for (const auto& choice : wanted) {
    bool named = false;
    if (const auto found = model.by_name.find(choice.name); found != model.by_name.end()) {
      named = true;
      if (!taken[found->second]) {
        taken[found->second] = true;
        auto added = add(found->second, choice.slice);
        if (!added) return failure{added.error()};
      }
    } else {
      for (std::uint32_t number = 0; number < model.tensors.size(); ++number) {
        if (::fnmatch(choice.name.c_str(), model.tensors[number].name.c_str(), 0) != 0) continue;
        named = true;
        if (taken[number]) continue;
        taken[number] = true;
        auto added = add(number, choice.slice);
        if (!added) return failure{added.error()};
      }
    }
    if (!named) {
      return failure{error(errc::not_found, "no tensor is called " + json_quote(choice.name) +
                                                ", and none matches it as a pattern")};
    }
  }
  // By their place in the files, unless the caller's order is what counts: neighbours are then
  // asked for together.
  if (order == delivery::completion) std::ranges::sort(plan.tensors, {}, &planned_tensor::tensor);
  return plan;
}

std::vector<known_part> known_parts(const planned_tensor& tensor, std::uint64_t known) {
  std::vector<known_part> parts;
  std::uint64_t offset = 0;
  for (const auto& run : tensor.runs) {
    for (std::uint64_t repeat = 0; repeat < run.count; ++repeat) {
      const std::uint64_t begin = run.begin + repeat * run.stride;
      if (begin >= known) return parts;
      parts.push_back({begin, offset, std::min(run.size, known - begin)});
      offset += run.size;
    }
  }
  return parts;
}

std::vector<planned_range> cut_ranges(const stream_plan& plan,
                                      std::span<const std::uint32_t> admitted,
                                      std::uint64_t longest, known_prefix known) {
  std::vector<planned_range> ranges;
  const auto append = [&ranges, longest](std::uint32_t file, std::uint64_t begin, segment part) {
    while (part.size > 0) {
      planned_range* last = ranges.empty() ? nullptr : &ranges.back();
      if (last == nullptr || last->file != file || last->bytes.size >= longest) {
        ranges.push_back({file, {begin, 0}, {}});
        last = &ranges.back();
      } else if (begin != last->bytes.end()) {
        const bool near = begin > last->bytes.end() && begin - last->bytes.end() <= gap_limit &&
                          begin - last->bytes.begin < longest;
        if (near) {
          const std::uint64_t between = begin - last->bytes.end();
          last->segments.push_back({segment::gap, 0, between});
          last->bytes.size += between;
        } else {
          ranges.push_back({file, {begin, 0}, {}});
          last = &ranges.back();
        }
      }
      const std::uint64_t taken = std::min(part.size, longest - last->bytes.size);
      last->segments.push_back({part.tensor, part.offset, taken});
      last->bytes.size += taken;
      begin += taken;
      part.offset += taken;
      part.size -= taken;
    }
  };

  for (const std::uint32_t number : admitted) {
    const planned_tensor& tensor = plan.tensors[number];
    const std::uint64_t skipped = tensor.file < known.size() ? known[tensor.file] : 0;
    std::uint64_t offset = 0;
    for (const auto& run : tensor.runs) {
      for (std::uint64_t repeat = 0; repeat < run.count; ++repeat) {
        const std::uint64_t begin = run.begin + repeat * run.stride;
        const std::uint64_t there = begin < skipped ? std::min(skipped - begin, run.size) : 0;
        append(tensor.file, begin + there, {number, offset + there, run.size - there});
        offset += run.size;
      }
    }
  }
  return ranges;
}

planned_range split_range(planned_range& range, std::uint64_t size) {
  planned_range rest{range.file, {range.bytes.begin + size, range.bytes.size - size}, {}};
  std::uint64_t kept = 0;
  std::size_t at = 0;
  while (kept + range.segments[at].size <= size) kept += range.segments[at++].size;
  rest.segments.assign(range.segments.begin() + static_cast<std::ptrdiff_t>(at),
                       range.segments.end());
  // A segment that the cut goes through ends the first part and begins the second.
  const std::uint64_t here = size - kept;
  range.segments.resize(here > 0 ? at + 1 : at);
  if (here > 0) {
    range.segments.back().size = here;
    rest.segments.front().offset += here;
    rest.segments.front().size -= here;
  }
  range.bytes.size = size;
  return rest;
}

}  // namespace headrace::detail
