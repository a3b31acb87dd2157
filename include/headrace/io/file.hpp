#pragma once

#include <headrace/base/export.hpp>
#include <headrace/base/result.hpp>
#include <headrace/coro/task.hpp>
#include <headrace/io/buffer_sequence.hpp>
#include <headrace/io/io_context.hpp>

#include <sys/stat.h>

#include <cstdint>
#include <memory>
#include <string>

namespace headrace {

/// What a read past the page cache has to be aligned to, in bytes.
struct direct_alignment {
  std::uint32_t memory = 0;
  std::uint32_t offset = 0;  ///< Of sizes, too. 0: reads go through the page cache.
};

/// How a file is read.
enum class file_access : std::uint8_t {
  cached,  ///< Through the page cache.
  direct,  ///< Past it (`O_DIRECT`) where the file system can, otherwise through it: see
           ///< `file::direct`.
};

/// A local file opened for reading. Threads: any; each read runs on the loop that it is given. No
/// read may be under way when it is destroyed.
class HEADRACE_API file {
 public:
  file() noexcept;
  file(file&& other) noexcept;
  file& operator=(file&& other) noexcept;
  ~file();

  /// Opens `path`, a regular file, for reading, on a helper thread of the loop. Errors name the
  /// path.
  [[nodiscard]] static task<result<file>> open(io_context& context, std::string path,
                                               file_access access = file_access::cached);

  /// Reads up to the size of `destination` from `offset` on. Completes with the count, 0 at the end
  /// of the file. A stop completes it with `errc::cancelled` where the kernel can still take it
  /// back.
  ///
  /// While reads are direct the offset, each size and each address must be aligned as `direct()`
  /// says; `direct_read` reads whatever is not. `registered`: the one buffer is in that one of the
  /// ring's registered buffers, see `bounce_buffer`.
  [[nodiscard]] io_operation<std::size_t> read(io_context& context, std::uint64_t offset,
                                               buffer_sequence destination,
                                               int registered = -1) const;

  /// What direct reads have to be aligned to; an offset of 0 where reads are not direct.
  [[nodiscard]] direct_alignment direct() const noexcept;

  /// From now on reads go through the page cache. Reads that are under way end as they began.
  /// Threads: any.
  void leave_direct() const noexcept;

  /// Device, inode, size and times, as they are now.
  [[nodiscard]] io_result<struct stat> status() const;

 private:
  explicit file(std::unique_ptr<detail::descriptor> descriptor) noexcept;
  void close() noexcept;

  std::unique_ptr<detail::descriptor> descriptor_;
};

}  // namespace headrace
