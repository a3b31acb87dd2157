#pragma once

#include <headrace/base/export.hpp>
#include <headrace/device/allocator.hpp>
#include <headrace/memory/host_arena.hpp>

#include <cstddef>
#include <memory>
#include <utility>

namespace headrace {

/// An allocator's block that counts against a stream's budget until it is detached or dropped.
///
/// The bytes have been charged by whoever admitted them (`host_arena::charge`); this takes the
/// charge back. Threads: one at a time; any thread may drop it.
class HEADRACE_API charged_block {
 public:
  charged_block() noexcept = default;

  /// `charged` bytes of `budget` are `block`'s.
  charged_block(device_block block, std::shared_ptr<host_arena> budget,
                std::size_t charged) noexcept
      : block_(std::move(block)), budget_(std::move(budget)), charged_(charged) {}

  charged_block(charged_block&& other) noexcept = default;
  charged_block& operator=(charged_block&& other) noexcept {
    if (this != &other) {
      reset();
      block_ = std::move(other.block_);
      budget_ = std::move(other.budget_);
      charged_ = other.charged_;
    }
    return *this;
  }
  charged_block(const charged_block&) = delete;
  charged_block& operator=(const charged_block&) = delete;
  ~charged_block() { reset(); }

  [[nodiscard]] std::byte* data() const noexcept { return block_.data(); }
  [[nodiscard]] std::size_t size() const noexcept { return block_.size(); }

  /// Makes the block the user's own: it is no longer charged. May give a release notice.
  void detach() noexcept {
    const auto budget = std::exchange(budget_, nullptr);
    if (budget != nullptr) budget->uncharge(charged_);
  }

  /// Drops the memory now, then the charge: whoever is told of room finds it.
  void reset() noexcept {
    block_.reset();
    detach();
  }

 private:
  device_block block_;
  std::shared_ptr<host_arena> budget_;
  std::size_t charged_ = 0;
};

}  // namespace headrace
