#pragma once

#include <headrace/base/export.hpp>
#include <headrace/device/charged_block.hpp>
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
/// to be used again, or to the allocator that it came from. On a CUDA device it may be used on any
/// stream: its bytes have landed. It may outlive the stream, the model and the runtime. What
/// `next()` exposes counts against the stream's memory limit until the following `next()`, or until
/// it is moved out; from then on it is the user's own. Threads: one at a time; any thread may drop
/// it.
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

  /// The bytes, little-endian elements without gaps. On a CUDA device these are addresses of the
  /// device, which the host must not follow: see `copy_to_host`.
  [[nodiscard]] std::span<std::byte> bytes() noexcept {
    return elsewhere_.data() != nullptr ? std::span(elsewhere_.data(), size_) : memory_.bytes();
  }
  [[nodiscard]] std::span<const std::byte> bytes() const noexcept {
    return elsewhere_.data() != nullptr ? std::span<const std::byte>(elsewhere_.data(), size_)
                                        : memory_.bytes();
  }

  /// Where the bytes are.
  [[nodiscard]] headrace::device device() const noexcept { return device_; }

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

  tensor(std::shared_ptr<const tensor_info> info,
         std::shared_ptr<const std::vector<std::uint64_t>> shape, headrace::device device,
         charged_block memory, std::size_t size) noexcept
      : info_(std::move(info)),
        shape_(std::move(shape)),
        device_(device),
        elsewhere_(std::move(memory)),
        size_(size) {}

  void detach() noexcept {
    memory_.detach();
    elsewhere_.detach();
  }

  std::shared_ptr<const tensor_info> info_;                  ///< Keeps the model's catalogue alive.
  std::shared_ptr<const std::vector<std::uint64_t>> shape_;  ///< Of a slice; null: the whole.
  headrace::device device_;
  host_block memory_;        ///< Of the stream's arena; or
  charged_block elsewhere_;  ///< of an allocator: then the tensor has its first `size_` bytes.
  std::size_t size_ = 0;
  bool exposed_ = false;  ///< By next(): moving it out makes it the user's own.
};

}  // namespace headrace
