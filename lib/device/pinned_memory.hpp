#pragma once

#include <headrace/base/result.hpp>
#include <headrace/device/cuda_device.hpp>

#include <cstddef>
#include <span>

namespace headrace::detail {

/// Pins ordinary pages, so that every device of the process copies from them without the driver's
/// own bounce buffers. Blocks: for helper threads.
[[nodiscard]] result<void> pin(const cuda_device& target, std::span<std::byte> pages);

/// The reverse; the pages are the caller's own again afterwards, whatever the driver says.
void unpin(const cuda_device& target, std::byte* pages) noexcept;

/// Whether this process is a forked child, in which nothing that was pinned exists.
[[nodiscard]] bool left_behind_by_fork(const cuda_device& target) noexcept;

}  // namespace headrace::detail
