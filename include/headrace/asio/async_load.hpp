#pragma once

#include <headrace/asio/operation.hpp>
#include <headrace/coro/async_generator.hpp>
#include <headrace/stream/model.hpp>
#include <headrace/stream/tensor.hpp>

#include <boost/asio/async_result.hpp>
#include <boost/asio/system_executor.hpp>

#include <functional>
#include <map>
#include <string>
#include <utility>

namespace headrace {
namespace asio {

/// The tensors of a model by name.
using tensor_map = std::map<std::string, tensor, std::less<>>;

}  // namespace asio

namespace detail {

inline task<asio::tensor_map> load_all(async_generator<tensor> tensors) {
  asio::tensor_map loaded;
  std::exception_ptr failed;
  try {
    while (auto* one = co_await tensors.next()) {
      std::string name(one->name());
      loaded.emplace(std::move(name), std::move(*one));
    }
  } catch (...) {
    failed = std::current_exception();
  }
  co_await tensors.close();
  if (failed) std::rethrow_exception(failed);
  co_return loaded;
}

}  // namespace detail

namespace asio {

/// Streams all that `options` select and completes with it: every tensor, or an error and none.
///
/// Signature: `void(std::exception_ptr, tensor_map)`. The tensors are the user's own; what is under
/// way keeps within `options.memory_limit`. The exception is a `headrace::error` (see `async_run`).
/// Completes on the handler's associated executor, without one on the system executor.
/// Cancellation: each type ends it with `cancelled`.
///
///     auto weights = co_await headrace::asio::async_load(model, {}, boost::asio::use_awaitable);
template <BOOST_ASIO_COMPLETION_TOKEN_FOR(void(std::exception_ptr, tensor_map)) Token>
auto async_load(const model& from, stream_options options, Token&& token) {
  return boost::asio::async_initiate<Token, void(std::exception_ptr, tensor_map)>(
      [](auto handler, async_generator<tensor> tensors) {
        detail::begin_asio<tensor_map>(
            std::move(handler), boost::asio::system_executor(), {},
            [](detail::asio_half* half) {
              return std::make_shared<detail::asio_operation_of<tensor_map>>(half);
            },
            [&tensors](detail::asio_operation_of<tensor_map>&) {
              return detail::load_all(std::move(tensors));
            });
      },
      token, from.stream(std::move(options)));
}

}  // namespace asio
}  // namespace headrace
