#pragma once

#include <headrace/base/export.hpp>
#include <headrace/base/result.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace headrace {

/// Which file of a sharded checkpoint holds which tensor: `model.safetensors.index.json`.
struct HEADRACE_API index {
  struct entry {
    std::string tensor;
    std::uint32_t file = 0;  ///< An index into `files`.

    friend bool operator==(const entry&, const entry&) = default;
  };

  std::vector<std::string>
      files;                   ///< Sorted by bytes, each once; every one holds at least one tensor.
  std::vector<entry> tensors;  ///< Sorted by name (by bytes), each once.

  /// The file (an index into `files`) that holds `tensor`; nothing where the index does not name
  /// it.
  [[nodiscard]] std::optional<std::uint32_t> find(std::string_view tensor) const noexcept;
};

/// The largest index that is read, in bytes.
inline constexpr std::size_t index_limit = 100'000'000;

/// Reads an index. `json` is the whole file.
///
/// Demands a JSON object whose `weight_map` is an object of strings: tensor name to file name.
/// Other members (`metadata`) must be JSON and are not looked at. An index may come from a
/// stranger, so a file name must be a plain relative path: no `/` at its start or end, no empty,
/// `.` or `..` component, no backslash, no control character. A tensor or a `weight_map` that is
/// there twice is refused: JSON readers disagree on which one counts, and the wrong one would be
/// the wrong weights. At most `index_limit` bytes and 127 levels of nesting. Every fault is
/// `invalid_safetensors` and says which key. Threads: any. Throws nothing but `std::bad_alloc`.
///
///     auto shards = parse_index(text);
///     for (const auto& file : shards->files) …
[[nodiscard]] HEADRACE_API result<index> parse_index(std::string_view json);

}  // namespace headrace
