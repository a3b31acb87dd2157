#include "device/staging_pages.hpp"

#include <sys/mman.h>

#include <cstdint>

namespace headrace::detail {

std::byte* map_pages(std::size_t size, bool forkable) noexcept {
  constexpr std::size_t huge_page = std::size_t{2} << 20;
  const std::size_t padding = size >= huge_page ? huge_page : 0;
  void* const got =
      ::mmap(nullptr, size + padding, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (got == MAP_FAILED) return nullptr;
  auto* data = static_cast<std::byte*>(got);
  if (padding != 0) {
    const std::size_t front =
        (huge_page - reinterpret_cast<std::uintptr_t>(got) % huge_page) % huge_page;
    if (front != 0) ::munmap(data, front);
    data += front;
    if (front != padding) ::munmap(data + size, padding - front);
    // A kernel without huge pages refuses the advice; small pages work as well, only slower.
    ::madvise(data, size, MADV_HUGEPAGE);
  }
  if (!forkable) ::madvise(data, size, MADV_DONTFORK);
  return data;
}

void unmap_pages(std::byte* data, std::size_t size) noexcept { ::munmap(data, size); }

}  // namespace headrace::detail
