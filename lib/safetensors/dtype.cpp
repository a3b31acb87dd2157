#include <headrace/safetensors/dtype.hpp>

namespace headrace {

std::optional<dtype> parse_dtype(std::string_view name) noexcept {
  for (std::size_t at = 0; at < dtype_count; ++at) {
    if (detail::dtypes[at].name == name) return static_cast<dtype>(at);
  }
  return std::nullopt;
}

}  // namespace headrace
