#pragma once

#include <headrace/base/export.hpp>
#include <headrace/device/device.hpp>
#include <headrace/memory/host_block.hpp>
#include <headrace/safetensors/tensor_info.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

// The structures of DLPack, of which every framework has a copy. See
// https://dmlc.github.io/dlpack/latest/c_api.html.
struct DLManagedTensor;
struct DLManagedTensorVersioned;

namespace headrace {

/// A tensor that has arrived: name, dtype, shape, and the memory with its bytes, which it owns.
///
/// Row-major and dense; the memory is aligned to 64 bytes. Movable. Dropping it returns its memory
/// to be used again. It may outlive the stream, the model and the runtime. What `next()` exposes
/// counts against the stream's memory limit until the following `next()`, or until it is moved out;
/// from then on it is the user's own. Threads: one at a time; any thread may drop it.
class HEADRACE_API tensor {
 public:
  tensor() noexcept = default;
  tensor(tensor&& other) noexcept;
  tensor& operator=(tensor&& other) noexcept;
  ~tensor() = default;

  [[nodiscard]] std::string_view name() const noexcept {
    return info_ ? std::string_view(info_->name) : std::string_view();
  }
  [[nodiscard]] headrace::dtype dtype() const noexcept {
    return info_ ? info_->dtype : headrace::dtype::u8;
  }

  /// Extents, the slowest first; those of the slice where one was asked for. Valid as long as the
  /// tensor.
  [[nodiscard]] std::span<const std::uint64_t> shape() const noexcept;

  /// The bytes, little-endian elements without gaps.
  [[nodiscard]] std::span<std::byte> bytes() noexcept { return memory_.bytes(); }
  [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return memory_.bytes(); }

  [[nodiscard]] headrace::device device() const noexcept { return cpu(); }

  /// Hands the tensor over as DLPack 1.1, without a copy: the receiver calls the structure's
  /// deleter when it is done, on any thread. The tensor is empty afterwards, and its memory the
  /// receiver's own. Throws `unsupported` for F4, F6_E2M3 and F6_E3M2, whose packing DLPack leaves
  /// open; the tensor is untouched then.
  ///
  ///     DLManagedTensorVersioned* exported = std::move(*t).to_dlpack();
  [[nodiscard]] DLManagedTensorVersioned* to_dlpack() &&;

  /// The same for consumers of DLPack before 1.0.
  [[nodiscard]] DLManagedTensor* to_dlpack_legacy() &&;

 private:
  friend class fetch;

  tensor(std::shared_ptr<const tensor_info> info,
         std::shared_ptr<const std::vector<std::uint64_t>> shape, host_block memory) noexcept
      : info_(std::move(info)), shape_(std::move(shape)), memory_(std::move(memory)) {}

  std::shared_ptr<const tensor_info> info_;                  ///< Keeps the model's catalogue alive.
  std::shared_ptr<const std::vector<std::uint64_t>> shape_;  ///< Of a slice; null: the whole.
  host_block memory_;
  bool exposed_ = false;  ///< By next(): moving it out makes it the user's own.
};

}  // namespace headrace
