#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace headrace {

/// A part of one dimension: elements `[begin, end)`.
struct slice_extent {
  std::uint64_t begin = 0;
  std::uint64_t end = UINT64_MAX;  ///< Beyond the extent: up to it.

  friend bool operator==(const slice_extent&, const slice_extent&) = default;
};

/// Which tensors, and which part of each.
///
/// `name` is the name of a tensor or, where no tensor has it, a glob as `fnmatch(3)` reads it: `*`,
/// `?`, `[a-z]`, and `*` also matches a dot. `slice` takes a part of the first dimensions, one
/// extent a dimension; dimensions that it does not mention are whole.
///
///     selection{"model.layers.0.*"}
///     selection{"lm_head.weight", {{0, 4096}}}          // the first 4096 rows
///     selection{"*.o_proj.weight", {{}, {512, 1024}}}   // a block of columns
struct selection {
  std::string name;
  std::vector<slice_extent> slice = {};
};

}  // namespace headrace
