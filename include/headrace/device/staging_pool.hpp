#pragma once

#include <headrace/base/result.hpp>
#include <headrace/base/sizes.hpp>
#include <headrace/coro/task.hpp>

#include <cstddef>
#include <memory>
#include <span>
#include <utility>

namespace headrace {

class blocking_pool;
class cuda_device;
class staging_pool;

namespace detail {
class staging_state;
}

/// How much memory bodies are received into on their way to a device, for each device in use.
struct staging_options {
  unsigned slots = 32;            ///< At least 1.
  std::size_t slot_size = 8_MiB;  ///< At least 64 KiB; a multiple of 4096.
};

/// A piece of pinned memory, aligned to 4096 bytes, on loan from a `staging_pool`; goes back when
/// dropped, on any thread. Whatever the kernel or the driver does with it must be over then.
class staging_slot {
 public:
  staging_slot() noexcept = default;
  staging_slot(staging_slot&& other) noexcept
      : state_(std::move(other.state_)), data_(std::exchange(other.data_, nullptr)) {}
  staging_slot& operator=(staging_slot&& other) noexcept {
    if (this != &other) {
      reset();
      state_ = std::move(other.state_);
      data_ = std::exchange(other.data_, nullptr);
    }
    return *this;
  }
  staging_slot(const staging_slot&) = delete;
  staging_slot& operator=(const staging_slot&) = delete;
  ~staging_slot() { reset(); }

  [[nodiscard]] std::span<std::byte> bytes() const noexcept;

  void reset() noexcept;

 private:
  friend class detail::staging_state;
  staging_slot(std::shared_ptr<detail::staging_state> state, std::byte* data) noexcept
      : state_(std::move(state)), data_(data) {}

  std::shared_ptr<detail::staging_state> state_;
  std::byte* data_ = nullptr;
};

/// The staging memory of one device: slots of one size, pinned when they are first needed, on a
/// helper thread, and kept for later.
///
/// What was given back last is given out first: its bytes are the likeliest to be in a cache. A
/// slot is held only while a body is received into it and copied on, never by a consumer, so
/// streams share a pool without being able to lock each other out. Threads: any. Slots may outlive
/// the pool.
///
///     auto slot = co_await pool.acquire();
///     if (!slot) co_return failure{slot.error()};
class staging_pool {
 public:
  /// `target` null: plain memory, for the host's copy engine. `helpers` must outlive the pool.
  staging_pool(staging_options options, std::shared_ptr<cuda_device> target,
               blocking_pool& helpers);
  staging_pool(const staging_pool&) = delete;
  staging_pool& operator=(const staging_pool&) = delete;

  /// Unpins and frees what is not on loan; the rest goes as it comes back.
  ~staging_pool();

  [[nodiscard]] const staging_options& options() const noexcept;

  /// A slot, in the order of asking; waits for one that comes back where all are out. A stop ends
  /// the waiting with `cancelled`. Where no more memory can be pinned but some was, that has to do;
  /// `out_of_memory`, with what to lower, where not even one slot could be.
  [[nodiscard]] task<result<staging_slot>> acquire();

  /// How many bytes are pinned now.
  [[nodiscard]] std::size_t pinned() const noexcept;

 private:
  const std::shared_ptr<detail::staging_state> state_;
};

}  // namespace headrace
