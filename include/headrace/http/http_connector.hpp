#pragma once

#include <headrace/base/export.hpp>
#include <headrace/base/result.hpp>
#include <headrace/coro/task.hpp>
#include <headrace/http/http_route.hpp>
#include <headrace/io/byte_stream.hpp>

#include <memory>
#include <string_view>

namespace headrace {

/// How a pool comes to a connection: over TCP (`tcp_connector`), or as a test wants it.
///
/// Threads: the loop's own.
class HEADRACE_API http_connector {
 public:
  virtual ~http_connector() = default;

  /// A stream on which requests to the origin of `route` may be sent; through a proxy for `http`
  /// origins, in the form that proxies want. Errors: `connect_error`, with the status where a proxy
  /// gave one; `timeout`, `tls_error`, `access_denied` and `protocol_error` (a proxy),
  /// `invalid_request` (settings), `unsupported` (a scheme it does not speak), `cancelled`; they
  /// name the origin or the proxy.
  [[nodiscard]] virtual task<result<std::unique_ptr<byte_stream>>> connect(http_route route) = 0;

  /// `peer`, as `byte_stream::peer()` tells it, was of no use: if there are others, they come first
  /// for a while.
  virtual void avoid(std::string_view peer) = 0;
};

}  // namespace headrace
