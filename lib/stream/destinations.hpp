#pragma once

#include "stream/runtime_state.hpp"

#include <headrace/device/allocator.hpp>
#include <headrace/device/copy_engine.hpp>
#include <headrace/device/staging_pool.hpp>
#include <headrace/stream/stream_options.hpp>

#include <cstddef>
#include <memory>
#include <vector>

namespace headrace::detail {

/// Where the tensors of a stream land when that is not the stream's own arena: memory of an
/// allocator, on the host or on a CUDA device.
///
/// On the host bodies are received straight into it. On a device they are received into staging
/// slots and copied on, by an engine of each loop.
class destinations {
 public:
  /// Whether a stream with these options needs one.
  [[nodiscard]] static bool needed(const stream_options& options) noexcept {
    return options.destination != nullptr || options.device.kind != device::type::cpu;
  }

  /// Opens the device, if there is one, and an engine on every loop. Runs on a loop of the runtime;
  /// must be destroyed before the runtime's loops end.
  [[nodiscard]] static task<result<std::unique_ptr<destinations>>> open(
      std::shared_ptr<runtime_state> runtime, stream_options options, loop_services* loop);

  /// Whether bodies go through staging slots.
  [[nodiscard]] bool staged() const noexcept { return !engines_.empty(); }

  [[nodiscard]] const device& where() const noexcept { return device_; }

  /// Memory for tensors of these sizes, none of them 0. What is copied from now on waits for it.
  [[nodiscard]] task<result<std::vector<device_block>>> allocate(std::vector<std::size_t> sizes);

  /// Staged alone.
  [[nodiscard]] task<result<staging_slot>> slot() { return services_->staging.acquire(); }
  [[nodiscard]] const staging_options& staging() const noexcept {
    return services_->staging.options();
  }
  [[nodiscard]] copy_engine& engine(std::size_t loop) noexcept {
    return *engines_[loop % engines_.size()];
  }

 private:
  destinations() = default;

  device device_;
  std::shared_ptr<allocator> memory_;
  std::shared_ptr<device_services> services_;
  std::vector<copy_engine*> engines_;  ///< By loop; the loops' own.
};

}  // namespace headrace::detail
