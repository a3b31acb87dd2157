#pragma once

#include <headrace/base/export.hpp>
#include <headrace/base/result.hpp>
#include <headrace/coro/task.hpp>
#include <headrace/io/buffer_sequence.hpp>
#include <headrace/io/io_context.hpp>

#include <sys/stat.h>

#include <memory>
#include <string>

namespace headrace {

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
  [[nodiscard]] static task<result<file>> open(io_context& context, std::string path);

  /// Reads up to the size of `destination` from `offset` on. Completes with the count, 0 at the end
  /// of the file. A stop completes it with `errc::cancelled` where the kernel can still take it
  /// back.
  [[nodiscard]] io_operation<std::size_t> read(io_context& context, std::uint64_t offset,
                                               buffer_sequence destination) const;

  /// Device, inode, size and times, as they are now.
  [[nodiscard]] io_result<struct stat> status() const;

 private:
  explicit file(std::unique_ptr<detail::descriptor> descriptor) noexcept;
  void close() noexcept;

  std::unique_ptr<detail::descriptor> descriptor_;
};

}  // namespace headrace
