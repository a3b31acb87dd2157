#pragma once

#include <headrace/base/result.hpp>
#include <headrace/coro/task.hpp>
#include <headrace/io/byte_stream.hpp>
#include <headrace/io/io_context.hpp>
#include <headrace/io/tls_context.hpp>

#include <memory>
#include <string>

namespace headrace {

/// Makes a TLS connection of `transport`: shakes hands with `host`, a name or a literal address,
/// and checks its certificate.
///
/// Errors: `tls_error` (an expired certificate, another host's, an unknown authority, no common
/// version) with what to do about it; `connect_error` where the peer breaks off; `cancelled`.
/// Threads: the loop's own.
[[nodiscard]] task<result<std::unique_ptr<byte_stream>>> secure(
    io_context& context, std::unique_ptr<byte_stream> transport, std::shared_ptr<tls_context> terms,
    std::string host);

}  // namespace headrace
