#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

namespace headrace::detail {

inline constexpr std::size_t page_size = 4096;
inline constexpr std::size_t huge_page_size = std::size_t{2} << 20;

[[nodiscard]] constexpr std::uint64_t align_up(std::uint64_t value,
                                               std::size_t alignment) noexcept {
  return (value + (alignment - 1)) & ~std::uint64_t{alignment - 1};
}

[[nodiscard]] constexpr std::uint64_t align_down(std::uint64_t value,
                                                 std::size_t alignment) noexcept {
  return value & ~std::uint64_t{alignment - 1};
}

/// An anonymous private mapping: aligned to and a multiple of 2 MiB, huge-page-advised, without
/// reserved swap, all cold.
class mapping {
 public:
  /// Maps 1 GiB, or `least` bytes where that is more; where the system refuses 1 GiB, half as much
  /// and so on down to `least`. None where it refuses that too.
  [[nodiscard]] static std::optional<mapping> make(std::size_t least) noexcept;

  mapping(mapping&& other) noexcept;
  mapping& operator=(mapping&&) = delete;
  ~mapping();

  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }

  /// Where the mapping begins in the arena's own order of places: mappings in the order of their
  /// making, since the kernel hands out addresses downwards and "lowest first" should go on filling
  /// what is already in use. A multiple of 2 MiB, as `data()` is, so that places and addresses lie
  /// in pages alike.
  [[nodiscard]] std::uint64_t place() const noexcept { return place_; }
  void place(std::uint64_t where) noexcept { place_ = where; }

 private:
  mapping(std::byte* data, std::size_t size) noexcept : data_(data), size_(size) {}

  std::byte* data_;
  std::size_t size_;
  std::uint64_t place_ = 0;
};

/// Gives whole pages back to the system; they stay mapped and read as zero.
void return_pages(std::byte* data, std::size_t size) noexcept;

/// Tells AddressSanitizer, where it is built in, that nobody may touch these bytes, or that
/// somebody may again.
void poison(const std::byte* data, std::size_t size) noexcept;
void unpoison(const std::byte* data, std::size_t size) noexcept;

/// Makes whole pages resident, without changing a byte. False where the kernel (before Linux 5.14)
/// cannot.
[[nodiscard]] bool populate(std::byte* data, std::size_t size) noexcept;

}  // namespace headrace::detail
