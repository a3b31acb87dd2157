#pragma once

#include <cstddef>

namespace headrace::detail {

/// Maps `size` bytes of memory for a staging slot: aligned to a page, to a huge page where it is as
/// long as one. A forked child gets none of it where `forkable` is false: what a device reads by
/// address must not move away by copy-on-write. Null, and `errno`, where the system refuses.
[[nodiscard]] std::byte* map_pages(std::size_t size, bool forkable) noexcept;

void unmap_pages(std::byte* data, std::size_t size) noexcept;

}  // namespace headrace::detail
