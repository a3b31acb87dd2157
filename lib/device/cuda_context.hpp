#pragma once

#include "device/cuda_driver.hpp"

#include <headrace/base/error.hpp>
#include <headrace/base/result.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

namespace headrace::detail {

/// Where a device's memory comes from.
struct device_pool {
  CUmemoryPool pool = nullptr;  ///< Null: the driver has no pools, and `stream` is not there.
  CUstream stream = nullptr;    ///< In whose order memory is allocated.
};

/// The primary context of a device, retained. Threads: any.
class cuda_context {
 public:
  /// The driver must have been initialised. Blocks while it makes the context.
  [[nodiscard]] static result<std::shared_ptr<cuda_context>> retain(const cuda_driver& driver,
                                                                    std::uint32_t index);

  cuda_context(const cuda_context&) = delete;
  cuda_context& operator=(const cuda_context&) = delete;

  /// Gives the context back. In a forked child nothing is.
  ~cuda_context();

  [[nodiscard]] const cuda_driver& driver() const noexcept { return driver_; }
  [[nodiscard]] std::uint32_t index() const noexcept { return index_; }
  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  [[nodiscard]] CUcontext handle() const noexcept { return handle_; }

  /// What `code` means, of this device: "cannot WHAT cuda:0: …".
  [[nodiscard]] error failure(CUresult code, const char* what) const;

  /// Whether work can be put into an order with that of `stream`: `invalid_request` where that
  /// depends on the thread, or would make the work a part of a graph that is being captured. For
  /// threads where the context is current.
  [[nodiscard]] result<void> check_order(CUstream stream) const;

  /// The device's own pool, made at the first call, which keeps up to `idle_limit` bytes that
  /// nobody uses; the limit of the last call counts. Blocks.
  [[nodiscard]] result<device_pool> pool(std::size_t idle_limit);

 private:
  cuda_context(const cuda_driver& driver, std::uint32_t index) noexcept
      : driver_(driver), index_(index) {}

  [[nodiscard]] CUresult make_pool();

  const cuda_driver& driver_;
  const std::uint32_t index_;
  CUdevice device_ = 0;
  CUcontext handle_ = nullptr;
  std::string name_;

  std::mutex mutex_;
  bool pool_tried_ = false;
  device_pool pool_;
};

/// Makes a context the current one of its thread while it lives, and leaves the thread as it was.
/// Meanwhile the thread's calls do not break a graph capture that another thread has under way.
///
///     const context_scope here(*context);
///     if (here.state() != CUDA_SUCCESS) return failure{context->failure(here.state(), "copy to")};
class context_scope {
 public:
  explicit context_scope(const cuda_context& entered) noexcept;
  context_scope(const context_scope&) = delete;
  context_scope& operator=(const context_scope&) = delete;
  ~context_scope();

  /// `CUDA_SUCCESS`, or why nothing may be called here: in a forked child
  /// `CUDA_ERROR_NOT_INITIALIZED`.
  [[nodiscard]] CUresult state() const noexcept { return state_; }

 private:
  const cuda_driver& driver_;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
  bool exchanged_ = false;
  bool pushed_ = false;
  CUresult state_;
};

}  // namespace headrace::detail
