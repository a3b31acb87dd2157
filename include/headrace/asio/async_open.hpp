#pragma once

#include <headrace/asio/operation.hpp>
#include <headrace/stream/model.hpp>

#include <boost/asio/async_result.hpp>
#include <boost/asio/system_executor.hpp>

#include <string>
#include <utility>

namespace headrace {
namespace asio {

/// `headrace::open` with a completion token.
///
/// Signature: `void(std::exception_ptr, model)`. Where there is an exception, a `headrace::error`
/// (see `async_run`), the model is as one that was moved from. Completes on the handler's
/// associated executor, without one on the system executor; `runtime` must live until the call has
/// begun, and destroying it completes with `cancelled`. Cancellation: each type ends it with
/// `cancelled`. Where the context is destroyed first, the handler is destroyed uncalled.
///
///     auto model = co_await headrace::asio::async_open(runtime, "s3://bucket/model", {},
///                                                      boost::asio::use_awaitable);
template <BOOST_ASIO_COMPLETION_TOKEN_FOR(void(std::exception_ptr, model)) Token>
auto async_open(runtime& runtime, std::string uri, open_options options, Token&& token) {
  return boost::asio::async_initiate<Token, void(std::exception_ptr, model)>(
      [](auto handler, task<model> opening) {
        detail::begin_asio<model>(
            std::move(handler), boost::asio::system_executor(), {},
            [](detail::asio_half* half) {
              return std::make_shared<detail::asio_operation_of<model>>(half);
            },
            [&opening](detail::asio_operation_of<model>&) { return std::move(opening); });
      },
      token, open(runtime, std::move(uri), std::move(options)));
}

}  // namespace asio
}  // namespace headrace
