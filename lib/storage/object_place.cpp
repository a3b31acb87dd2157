#include "storage/object_place.hpp"

#include <utility>

namespace headrace {

object_place object_place::of(std::string key) {
  while (!key.empty() && key.back() == '/') key.pop_back();
  object_place place{.prefix = std::move(key), .single = {}};
  if (place.prefix.ends_with(".safetensors")) {
    const auto slash = place.prefix.rfind('/');
    place.single = slash == std::string::npos ? place.prefix : place.prefix.substr(slash + 1);
    place.prefix.resize(slash == std::string::npos ? 0 : slash);
  }
  if (!place.prefix.empty()) place.prefix += '/';
  return place;
}

std::optional<std::string> object_place::name_of(std::string_view key) const {
  if (key.size() <= prefix.size() || !key.starts_with(prefix)) return std::nullopt;
  return std::string(key.substr(prefix.size()));
}

}  // namespace headrace
