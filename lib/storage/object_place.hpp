#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace headrace {

/// What a location names in a bucket: all that lies under a prefix, or one object.
struct object_place {
  std::string prefix;  ///< Empty, or with a `/` at its end.
  std::string single;  ///< The name under the prefix of the one object that is meant; may be empty.

  /// `a/b/` and `a/b` are a prefix; `a/b.safetensors` is `b.safetensors` under `a/`.
  [[nodiscard]] static object_place of(std::string key);

  /// The name of `key` relative to the prefix; nothing where it does not lie under it.
  [[nodiscard]] std::optional<std::string> name_of(std::string_view key) const;
};

}  // namespace headrace
