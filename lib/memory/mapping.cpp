#include "memory/mapping.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <limits>
#include <utility>

#if defined(__SANITIZE_ADDRESS__)
#define HEADRACE_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define HEADRACE_ASAN 1
#endif
#endif

#ifdef HEADRACE_ASAN
#include <sanitizer/asan_interface.h>
#endif

namespace headrace::detail {

namespace {

#ifdef HEADRACE_ASAN
// Poisoning writes an eighth of the mapping's size of shadow memory.
constexpr std::size_t usual_size = std::size_t{64} << 20;
#else
constexpr std::size_t usual_size = std::size_t{1} << 30;
#endif

[[nodiscard]] std::byte* map_aligned(std::size_t size) noexcept {
  const auto padded = size + huge_page_size;
  void* const got = ::mmap(nullptr, padded, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (got == MAP_FAILED) return nullptr;
  auto* const begin = static_cast<std::byte*>(got);
  const auto address = reinterpret_cast<std::uintptr_t>(got);
  const auto front = static_cast<std::size_t>(align_up(address, huge_page_size) - address);
  const auto back = huge_page_size - front;
  if (front != 0) ::munmap(begin, front);
  if (back != 0) ::munmap(begin + front + size, back);
  return begin + front;
}

}  // namespace

std::optional<mapping> mapping::make(std::size_t least) noexcept {
  if (least > std::numeric_limits<std::size_t>::max() / 4) return std::nullopt;
  least = static_cast<std::size_t>(align_up(least, huge_page_size));
  for (auto size = std::max(usual_size, least);;) {
    if (auto* const data = map_aligned(size)) {
      // A kernel without huge pages refuses the advice; small pages work as well, only slower.
      ::madvise(data, size, MADV_HUGEPAGE);
      poison(data, size);
      return mapping(data, size);
    }
    if (size == least) return std::nullopt;
    size = std::max(least, static_cast<std::size_t>(align_up(size / 2, huge_page_size)));
  }
}

mapping::mapping(mapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      place_(other.place_) {}

mapping::~mapping() {
  if (data_ == nullptr) return;
  unpoison(data_, size_);  // the next owner of these addresses knows nothing of us
  ::munmap(data_, size_);
}

void return_pages(std::byte* data, std::size_t size) noexcept {
  ::madvise(data, size, MADV_DONTNEED);
}

#ifdef HEADRACE_ASAN
void poison(const std::byte* data, std::size_t size) noexcept {
  __asan_poison_memory_region(data, size);
}
void unpoison(const std::byte* data, std::size_t size) noexcept {
  __asan_unpoison_memory_region(data, size);
}
#else
void poison(const std::byte*, std::size_t) noexcept {}
void unpoison(const std::byte*, std::size_t) noexcept {}
#endif

bool populate(std::byte* data, std::size_t size) noexcept {
#ifdef MADV_POPULATE_WRITE
  return ::madvise(data, size, MADV_POPULATE_WRITE) == 0;
#else
  static_cast<void>(data);
  static_cast<void>(size);
  return false;
#endif
}

}  // namespace headrace::detail
