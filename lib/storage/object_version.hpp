#pragma once

#include "storage/entity_tag.hpp"

#include <headrace/http/http_response_head.hpp>

#include <cstdint>
#include <optional>
#include <string>

namespace headrace {

/// Which version of an object an answer came from, as far as it says so. The first one is the pin.
struct object_version {
  std::uint64_t size = 0;
  std::string
      generation;  ///< The store's own number of the version (GCS); empty where it has none.
  std::optional<entity_tag> etag;
  std::string last_modified;  ///< As the server wrote it; compared, never read.

  /// Of an answer about an object of `total` bytes.
  [[nodiscard]] static object_version of(const http_response_head& head, std::uint64_t total);

  /// The tag that `If-Match` may carry: a strong one. Nothing otherwise.
  [[nodiscard]] const entity_tag* strong_tag() const noexcept {
    return etag && !etag->weak ? &*etag : nullptr;
  }

  /// Why `answer` is not of this version; empty where it is. A generation decides alone, next to
  /// the size, then a strong tag; otherwise everything that both know has to agree.
  [[nodiscard]] std::string difference(const object_version& answer) const;
};

}  // namespace headrace
