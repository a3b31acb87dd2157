#pragma once

#include <headrace/base/byte_range.hpp>
#include <headrace/base/export.hpp>
#include <headrace/base/result.hpp>
#include <headrace/coro/task.hpp>
#include <headrace/storage/range_sink.hpp>
#include <headrace/storage/transfer.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace headrace {

/// One object, as bytes: what the plan reads from. Pins the object's version, retries, resumes
/// inside a range, follows redirects; above every store, and once.
///
/// Invariant: a byte reaches a sink only if it came from the place asked for and from the version
/// that the first answer pinned. Everything else is an error: `object_changed`, `truncated`,
/// `protocol_error`, …, with the object's URI, the range, the attempt, the peer, the status and the
/// server's own words.
///
/// Threads: any loop of the runtime, several at once; each call stays on the loop that it is given.
/// What is passed by reference outlives the task. Cancellation: the environment's stop token, with
/// `errc::cancelled`; the sink's memory is free when the task has ended.
class HEADRACE_API range_source {
 public:
  virtual ~range_source() = default;

  /// Opens the object: reads its first bytes into `into`, learns its size and pins its version;
  /// once, before `read`. Gives how many bytes were read: all of an object that is no larger.
  [[nodiscard]] virtual task<result<std::size_t>> open(storage_loop& loop, const transfer& terms,
                                                       std::span<std::byte> into) = 0;

  /// Reads exactly `range`, which lies within the object and is not empty, into `sink`.
  [[nodiscard]] virtual task<result<void>> read(storage_loop& loop, const transfer& terms,
                                                byte_range range, range_sink& sink) = 0;

  /// In bytes; known once `open` has succeeded.
  [[nodiscard]] virtual std::uint64_t size() const noexcept = 0;

  /// For messages.
  [[nodiscard]] virtual const std::string& uri() const noexcept = 0;

  /// Whether reads come from this machine: then there is no connection to keep busy.
  [[nodiscard]] virtual bool local() const noexcept { return false; }
};

/// Reads a whole object, at most `limit` bytes of it (more: `invalid_request`): configurations,
/// indexes.
[[nodiscard]] HEADRACE_API task<result<std::vector<std::byte>>> read_object(range_source& source,
                                                                            storage_loop& loop,
                                                                            const transfer& terms,
                                                                            std::uint64_t limit);

}  // namespace headrace
