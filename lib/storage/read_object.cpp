#include <headrace/base/sizes.hpp>
#include <headrace/storage/range_source.hpp>

#include <algorithm>

namespace headrace {

task<result<std::vector<std::byte>>> read_object(range_source& source, storage_loop& loop,
                                                 const transfer& terms, std::uint64_t limit) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(std::min<std::uint64_t>(limit, 64_KiB)));
  auto opened = co_await source.open(loop, terms, bytes);
  if (!opened) co_return failure{opened.error()};
  const std::uint64_t size = source.size();
  if (size > limit) {
    co_return failure{error(errc::invalid_request,
                            "larger than expected: " + format_size(size) + ", at most " +
                                format_size(limit) + " are read",
                            {.uri = source.uri()})};
  }
  const std::size_t begun = *opened;
  bytes.resize(static_cast<std::size_t>(size));
  if (begun < size) {
    buffer_sink rest{std::span(bytes).subspan(begun)};
    auto read = co_await source.read(loop, terms, {begun, size - begun}, rest);
    if (!read) co_return failure{read.error()};
  }
  co_return bytes;
}

}  // namespace headrace
