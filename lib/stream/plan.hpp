#pragma once

#include "stream/catalogue.hpp"

#include <headrace/base/byte_range.hpp>
#include <headrace/stream/stream_options.hpp>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace headrace::detail {

/// Equal runs of bytes at equal distances in a file: a block of columns is one of these.
struct strided_run {
  std::uint64_t begin = 0;   ///< In the file.
  std::uint64_t size = 0;    ///< Of each run.
  std::uint64_t stride = 0;  ///< From one begin to the next.
  std::uint64_t count = 1;

  [[nodiscard]] std::uint64_t end() const noexcept { return begin + stride * (count - 1) + size; }
  [[nodiscard]] std::uint64_t total() const noexcept { return size * count; }

  friend bool operator==(const strided_run&, const strided_run&) = default;
};

/// A tensor, or a part of one, to be streamed.
struct planned_tensor {
  std::uint32_t tensor = 0;  ///< An index into the catalogue's tensors.
  std::uint32_t file = 0;
  std::uint64_t size = 0;  ///< Of the destination, in bytes.
  std::vector<strided_run>
      runs;  ///< In the order of the destination, ascending in the file; empty where `size` is 0.
  std::shared_ptr<const std::vector<std::uint64_t>>
      shape;  ///< Of a slice; null: the whole tensor's.
};

/// What to stream, in the order of admission. A pure value: made without I/O.
struct stream_plan {
  std::vector<planned_tensor> tensors;
  std::uint64_t total_bytes = 0;  ///< Of all destinations.
  std::uint64_t largest_tensor = 0;
};

/// Resolves `wanted` against what there is. Errors: `not_found`, a selection that names nothing;
/// `invalid_request`, a slice with too many dimensions or out of bounds, or through elements that
/// are not whole bytes.
[[nodiscard]] result<stream_plan> make_plan(const catalogue& model,
                                            std::span<const selection> wanted, delivery order);

/// A run of a file's bytes that belongs to one place of a tensor, or to none.
struct segment {
  static constexpr std::uint32_t gap = UINT32_MAX;

  std::uint32_t tensor =
      gap;                   ///< An index into the plan's tensors; `gap`: bytes that nobody wants.
  std::uint64_t offset = 0;  ///< In the tensor's memory.
  std::uint64_t size = 0;

  friend bool operator==(const segment&, const segment&) = default;
};

/// What one request asks for: bytes of one file, and where they go, in order.
struct planned_range {
  std::uint32_t file = 0;
  byte_range bytes;
  std::vector<segment> segments;  ///< Their sizes sum up to the range's.
};

/// Bytes between two wanted runs that are read and dropped rather than asked around: a request
/// costs more.
inline constexpr std::uint64_t gap_limit = 64 * 1024;

/// How much of a file's start is in memory already; nothing of that is cut.
using known_prefix = std::span<const std::uint64_t>;

/// Cuts admitted tensors (indices into the plan) into requests: neighbours in a file are joined,
/// also over gaps of at most `gap_limit`, and nothing is longer than `longest` (at least 1).
/// Nothing but admitted tensors is ever covered. `known` says for each file how many bytes of its
/// start are there already.
[[nodiscard]] std::vector<planned_range> cut_ranges(const stream_plan& plan,
                                                    std::span<const std::uint32_t> admitted,
                                                    std::uint64_t longest, known_prefix known);

/// Cuts `range` down to its first `size` bytes, fewer than it has, and gives the rest.
[[nodiscard]] planned_range split_range(planned_range& range, std::uint64_t size);

/// The parts of `tensor` that lie in the first `known` bytes of its file: their places in the file
/// and in the tensor.
struct known_part {
  std::uint64_t in_file = 0;
  std::uint64_t offset = 0;
  std::uint64_t size = 0;

  friend bool operator==(const known_part&, const known_part&) = default;
};
[[nodiscard]] std::vector<known_part> known_parts(const planned_tensor& tensor,
                                                  std::uint64_t known);

}  // namespace headrace::detail
