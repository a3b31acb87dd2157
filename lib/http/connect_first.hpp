#pragma once

#include <headrace/coro/task.hpp>
#include <headrace/io/byte_stream.hpp>
#include <headrace/io/endpoint.hpp>
#include <headrace/io/io_context.hpp>

#include <chrono>
#include <cstddef>
#include <memory>
#include <system_error>
#include <vector>

namespace headrace::detail {

/// What came of connecting to one of several addresses.
struct connect_outcome {
  std::unique_ptr<byte_stream> stream;  ///< None where no address answered, or at a stop.
  std::error_code failed;               ///< Of the last address that failed.
  std::vector<endpoint>
      useless;  ///< Addresses that failed, or that another one overtook although it began later.
};

/// The order in which `addresses` are tried (RFC 8305, 4): the family of the first one and the
/// other in turn, so that one that leads nowhere costs one wait. Within a family all are alike, and
/// each comes first once in so many `turns`.
[[nodiscard]] std::vector<endpoint> in_turn(std::vector<endpoint> addresses, std::size_t turns);

/// Connects to the first of `addresses` that answers (RFC 8305): they are tried in order, the next
/// one as soon as one fails, or after `patience` without an answer, beside those that are still
/// trying. Each has `limit`.
///
/// Threads: the loop's own. Cancellation: no stream, and `errc::cancelled`.
[[nodiscard]] task<connect_outcome> connect_first(io_context& context,
                                                  std::vector<endpoint> addresses,
                                                  std::chrono::nanoseconds limit,
                                                  std::chrono::nanoseconds patience);

}  // namespace headrace::detail
