#pragma once

#include <headrace/asio/operation.hpp>
#include <headrace/coro/async_generator.hpp>

#include <boost/asio/async_result.hpp>
#include <boost/asio/system_executor.hpp>

#include <utility>

namespace headrace {
namespace detail {

template <class T>
task<void> close_generator(async_generator<T> values) {
  co_await values.close();
}

}  // namespace detail

namespace asio {

/// `async_generator::close` with a completion token: ends the stream and completes once nothing of
/// it is left running.
///
/// Signature: `void(std::exception_ptr)`. `values` is empty from this call on and may be destroyed
/// before the completion. Completes on the handler's associated executor, without one on the system
/// executor. Cancellation is ignored: the end comes soon, and is what is waited for.
///
///     co_await headrace::asio::async_close(tensors, boost::asio::use_awaitable);
template <class T, BOOST_ASIO_COMPLETION_TOKEN_FOR(void(std::exception_ptr)) Token>
auto async_close(async_generator<T>& values, Token&& token) {
  return boost::asio::async_initiate<Token, void(std::exception_ptr)>(
      [](auto handler, async_generator<T> closed) {
        detail::begin_asio<void>(
            std::move(handler), boost::asio::system_executor(),
            {.honoured = boost::asio::cancellation_type::none},
            [](detail::asio_half* half) {
              return std::make_shared<detail::asio_operation_of<void>>(half);
            },
            [&closed](detail::asio_operation_of<void>&) {
              return detail::close_generator(std::move(closed));
            });
      },
      token, std::move(values));
}

}  // namespace asio
}  // namespace headrace
