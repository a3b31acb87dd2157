#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <span>

namespace headrace {

/// Where received bytes go, in order: a view of the kernel's own vectors, which the caller keeps
/// alive.
///
/// At most `max_buffers` of them, none empty. The memory belongs to the operation until its
/// completion has been seen.
using buffer_sequence = std::span<const iovec>;

/// The most vectors that one system call takes (`IOV_MAX`).
inline constexpr std::size_t max_buffers = 1024;

[[nodiscard]] inline iovec as_buffer(std::span<std::byte> bytes) noexcept {
  return {bytes.data(), bytes.size()};
}

[[nodiscard]] inline std::size_t total_size(buffer_sequence buffers) noexcept {
  std::size_t size = 0;
  for (const iovec& buffer : buffers) size += buffer.iov_len;
  return size;
}

}  // namespace headrace
