#include "storage/small_file.hpp"

#include <headrace/base/sizes.hpp>
#include <headrace/io/buffer_sequence.hpp>
#include <headrace/io/file.hpp>

#include <algorithm>
#include <span>

namespace headrace {

task<result<std::optional<std::string>>> read_small_file(storage_loop& loop, std::string path,
                                                         std::size_t limit) {
  auto opened = co_await file::open(loop.context, path);
  if (!opened) {
    if (opened.error().kind() == errc::not_found) co_return std::optional<std::string>();
    co_return failure{opened.error()};
  }
  // One byte more than may be there. Files that the kernel makes up have no size to go by.
  std::string text;
  std::size_t filled = 0;
  while (filled <= limit) {
    text.resize(std::min(limit + 1, std::max<std::size_t>(4096, 2 * filled)));
    const iovec buffer = as_buffer(std::as_writable_bytes(std::span(text)).subspan(filled));
    auto count = co_await opened->read(loop.context, filled, {&buffer, 1});
    if (!count) {
      if (kind_of(count.error()) == errc::cancelled)
        co_return failure{error(errc::cancelled, "stopped")};
      co_return failure{system_failure(count.error(), "cannot read " + path)};
    }
    if (*count == 0) {
      text.resize(filled);
      co_return std::optional<std::string>(std::move(text));
    }
    filled += *count;
  }
  co_return failure{error(errc::invalid_request,
                          path + " is too large: at most " + format_size(limit) + " are read")};
}

}  // namespace headrace
