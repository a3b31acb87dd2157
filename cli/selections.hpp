#pragma once

#include <headrace/stream/model.hpp>
#include <headrace/stream/selection.hpp>

#include <string>
#include <vector>

namespace headrace::cli {

/// The tensors of `from` that match one of `include`, or any where there is none, and none of
/// `exclude`. Empty, which means all, where neither has a glob. Throws `not_found` where nothing is
/// left.
[[nodiscard]] std::vector<selection> selections(const model& from,
                                                const std::vector<std::string>& include,
                                                const std::vector<std::string>& exclude);

}  // namespace headrace::cli
