#pragma once

#include <cstdint>
#include <string>

namespace headrace {

/// An object under a location.
struct object_entry {
  std::string name;  ///< Relative to the location: `model-00001-of-00004.safetensors`.
  std::uint64_t size = 0;

  friend bool operator==(const object_entry&, const object_entry&) = default;
};

}  // namespace headrace
