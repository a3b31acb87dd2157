#pragma once

#include <headrace/base/byte_range.hpp>
#include <headrace/safetensors/header.hpp>
#include <headrace/safetensors/index.hpp>
#include <headrace/stream/model.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace headrace::detail {

/// What a checkpoint holds. Immutable once built.
struct catalogue {
  std::vector<file_info> files;
  std::vector<tensor_info> tensors;  ///< By file, then by offset.
  std::uint64_t total_bytes = 0;
  std::unordered_map<std::string_view, std::uint32_t>
      by_name;  ///< Views of the names in `tensors`.

  [[nodiscard]] const tensor_info* find(std::string_view name) const noexcept {
    const auto found = by_name.find(name);
    return found != by_name.end() ? &tensors[found->second] : nullptr;
  }

  /// Where the bytes of `info` are in its file.
  [[nodiscard]] byte_range place_of(const tensor_info& info) const noexcept {
    return {files[info.file].header_bytes + info.begin, info.size()};
  }
};

/// A file and what its header says.
struct parsed_file {
  std::string name;
  std::uint64_t bytes = 0;
  header contents;
};

/// Puts the files together, in the order given. With an index, it is an allow-list: a tensor is
/// taken only from the file that the index names, others are ignored, and one that its file lacks
/// is `invalid_safetensors`. `files` are then the index's, in its order. Without one, the first
/// file that holds a name wins.
[[nodiscard]] result<catalogue> build_catalogue(std::vector<parsed_file> files,
                                                const index* shards);

}  // namespace headrace::detail
