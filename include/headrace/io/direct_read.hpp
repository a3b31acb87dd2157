#pragma once

#include <headrace/base/result.hpp>
#include <headrace/coro/task.hpp>
#include <headrace/io/buffer_sequence.hpp>

#include <cstddef>
#include <cstdint>

namespace headrace {

class file;
class io_context;

/// Reads from `offset` on past the page cache, wherever that is and wherever the bytes go: straight
/// into `destination` where the two lie alike, by way of a bounce buffer where they do not.
///
/// Completes with a count of at least 1, often less than asked for, 0 at the end of the file. A
/// file whose reads are not direct is read through the cache. It, `destination` and what that
/// points to outlive the task. Threads: the loop's own. Cancellation as for `file::read`. `EINVAL`
/// means that the file system refuses such reads after all.
[[nodiscard]] task<io_result<std::size_t>> direct_read(io_context& context, const file& from,
                                                       std::uint64_t offset,
                                                       buffer_sequence destination);

}  // namespace headrace
