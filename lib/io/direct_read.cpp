#include <headrace/io/direct_read.hpp>

#include <headrace/coro/when.hpp>
#include <headrace/io/bounce_buffer.hpp>
#include <headrace/io/file.hpp>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

namespace headrace {
namespace {

/// Below this a copy within memory costs less than two more requests to the device.
constexpr std::size_t shortest_straight = 128_KiB;

/// How one buffer divides: what the device can write by itself lies between bytes at either end
/// that share a block with something else.
struct division {
  std::size_t head = 0;
  std::size_t straight = 0;
  std::size_t tail = 0;
};

division divide(std::uint64_t offset, const iovec& buffer, direct_alignment aligned) noexcept {
  const auto head =
      static_cast<std::size_t>((aligned.offset - offset % aligned.offset) % aligned.offset);
  const auto address = reinterpret_cast<std::uintptr_t>(buffer.iov_base);
  if (buffer.iov_len < head + shortest_straight || (address + head) % aligned.memory != 0)
    return {};
  const std::size_t rest = buffer.iov_len - head;
  const std::size_t tail = rest % aligned.offset;
  if (rest - tail < shortest_straight) return {};
  return {head, rest - tail, tail};
}

task<io_result<std::size_t>> read_one(io_context& context, const file& from, std::uint64_t offset,
                                      iovec buffer, int registered) {
  auto count = co_await from.read(context, offset, {&buffer, 1}, registered);
  co_return count;
}

task<io_result<std::size_t>> read_straight(io_context& context, const file& from,
                                           std::uint64_t offset, iovec buffer, division parts,
                                           std::size_t block) {
  auto* const into = static_cast<std::byte*>(buffer.iov_base);
  // Of the two ends in the bounce buffer.
  const std::size_t second =
      (block + bounce_buffer::alignment - 1) / bounce_buffer::alignment * bounce_buffer::alignment;
  bounce_buffer ends;
  std::vector<task<io_result<std::size_t>>> reads;
  reads.push_back(
      read_one(context, from, offset + parts.head, {into + parts.head, parts.straight}, -1));
  if (parts.head + parts.tail > 0) {
    auto borrowed = co_await bounce_buffer::borrow(context, second + block);
    ends = std::move(borrowed);
    if (parts.head > 0) {
      reads.push_back(read_one(context, from, offset + parts.head - block,
                               as_buffer(ends.bytes().first(block)), ends.registered()));
    }
    if (parts.tail > 0) {
      reads.push_back(read_one(context, from, offset + parts.head + parts.straight,
                               as_buffer(ends.bytes().subspan(second, block)), ends.registered()));
    }
  }
  auto counts = co_await when_all(std::move(reads));
  for (const auto& count : counts) {
    if (!count) co_return failure{count.error()};
  }

  // Whatever came short ends what there is: the file may have become shorter.
  std::size_t done = 0;
  std::size_t next = 1;
  if (parts.head > 0) {
    const std::size_t before = block - parts.head;
    const std::size_t count = *counts[next++];
    done = count > before ? std::min(count - before, parts.head) : 0;
    std::memcpy(into, ends.bytes().data() + before, done);
    if (done < parts.head) co_return done;
  }
  done += *counts[0];
  if (*counts[0] < parts.straight || parts.tail == 0) co_return done;
  const std::size_t count = std::min(*counts[next], parts.tail);
  std::memcpy(into + done, ends.bytes().data() + second, count);
  co_return done + count;
}

task<io_result<std::size_t>> read_bounced(io_context& context, const file& from,
                                          std::uint64_t offset, buffer_sequence destination,
                                          std::size_t wanted, std::size_t block) {
  const auto before = static_cast<std::size_t>(offset % block);
  const std::size_t covered = (before + wanted + block - 1) / block * block;
  const std::size_t size = std::min(covered, bounce_buffer::largest / block * block);
  auto bounce = co_await bounce_buffer::borrow(context, size);
  const iovec buffer = as_buffer(bounce.bytes().first(size));
  auto count = co_await from.read(context, offset - before, {&buffer, 1}, bounce.registered());
  if (!count) co_return failure{count.error()};
  const std::size_t got = *count > before ? std::min(*count - before, wanted) : 0;
  std::size_t done = 0;
  for (const iovec& part : destination) {
    if (done == got) break;
    const std::size_t here = std::min(part.iov_len, got - done);
    std::memcpy(part.iov_base, bounce.bytes().data() + before + done, here);
    done += here;
  }
  co_return done;
}

}  // namespace

task<io_result<std::size_t>> direct_read(io_context& context, const file& from,
                                         std::uint64_t offset, buffer_sequence destination) {
  // Once: another reader may have the file leave direct reads meanwhile.
  const direct_alignment aligned = from.direct();
  if (aligned.offset == 0) {
    auto read = co_await from.read(context, offset, destination);
    co_return read;
  }
  const division first = divide(offset, destination.front(), aligned);
  if (first.straight > 0) {
    auto read =
        co_await read_straight(context, from, offset, destination.front(), first, aligned.offset);
    co_return read;
  }
  // Up to the first buffer that the device can write by itself.
  std::size_t wanted = destination.front().iov_len;
  for (const iovec& part : destination.subspan(1)) {
    if (wanted >= bounce_buffer::largest || divide(offset + wanted, part, aligned).straight > 0)
      break;
    wanted += part.iov_len;
  }
  auto read = co_await read_bounced(context, from, offset, destination, wanted, aligned.offset);
  co_return read;
}

}  // namespace headrace
