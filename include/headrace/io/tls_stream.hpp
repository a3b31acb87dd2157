#pragma once

#include <headrace/base/export.hpp>
#include <headrace/base/result.hpp>
#include <headrace/coro/task.hpp>
#include <headrace/io/byte_stream.hpp>
#include <headrace/io/io_context.hpp>
#include <headrace/io/tls_context.hpp>

#include <chrono>
#include <memory>
#include <string>

namespace headrace {

/// Makes a TLS connection of `transport`: shakes hands with `host`, a name or a literal address,
/// and checks its certificate, within `limit`.
///
/// Errors: `tls_error` (an expired certificate, another host's, an unknown authority, no common
/// version) with what to do about it; `connect_error` where the peer breaks off; `timeout`;
/// `cancelled`. Threads: the loop's own.
///
/// The stream receives large pieces and decrypts them on the loop's thread, into the destination.
/// Its end is the peer's close_notify; where the transport ends without one, a receive fails with a
/// code that is like `connect_error`: what came may have been cut off. What breaks TLS itself, and
/// alerts of the peer, are like `tls_error`. The peer's key updates and tickets are dealt with in
/// passing; a session is resumed where there is one.
///
///     auto secured = co_await secure(loop, std::move(transport), terms, "example.com");
[[nodiscard]] HEADRACE_API task<result<std::unique_ptr<byte_stream>>> secure(
    io_context& context, std::unique_ptr<byte_stream> transport, std::shared_ptr<tls_context> terms,
    std::string host, std::chrono::nanoseconds limit = std::chrono::nanoseconds::max());

}  // namespace headrace
