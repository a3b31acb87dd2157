#pragma once

#include <headrace/io/bounce_buffer.hpp>

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

namespace headrace::detail {

class io_engine;

/// The bounce buffers of one loop. Threads: the loop's own, `make` excepted.
class bounce_pool final : public std::enable_shared_from_this<bounce_pool> {
 public:
  /// What the readers of one stream of local files need at once.
  static constexpr std::size_t kept = 4;

  /// Maps and touches the memory. Blocks; throws `std::bad_alloc`. Threads: any.
  [[nodiscard]] static std::shared_ptr<bounce_pool> make();

  ~bounce_pool();
  bounce_pool(const bounce_pool&) = delete;
  bounce_pool& operator=(const bounce_pool&) = delete;

  /// Has the ring pin the buffers, where it may.
  void register_with(io_engine& engine) noexcept;

  [[nodiscard]] bounce_buffer borrow(std::size_t size);
  void give_back(std::span<std::byte> bytes) noexcept;

 private:
  explicit bounce_pool(std::byte* memory) noexcept;
  [[nodiscard]] bool holds(const std::byte* bytes) const noexcept;

  std::byte* const memory_;
  std::array<std::byte*, kept> free_{};  ///< The first `available_`.
  std::size_t available_ = kept;
  bool registered_ = false;
};

}  // namespace headrace::detail
