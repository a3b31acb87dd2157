#pragma once

#include <headrace/asio/operation.hpp>
#include <headrace/base/error.hpp>

#include <boost/asio/async_result.hpp>

#include <exception>
#include <utility>

namespace headrace::asio {

/// What a completion handler of this room was given, as an `error`: kind, message and context.
/// `failure` must not be null. What is no `headrace::error` is one of kind `internal`, with its
/// `what()`.
///
///     [](std::exception_ptr failed, headrace::model opened) {
///       if (failed) return log(headrace::asio::error_of(failed).message());
[[nodiscard]] inline error error_of(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const error& known) {
    return known;
  } catch (const std::exception& other) {
    return error(errc::internal, other.what());
  } catch (...) {
    return error(errc::internal, "an exception of an unknown type");
  }
}

/// Runs a headrace task on an Asio executor and completes with what it gives or throws: how any
/// task of headrace's, or of the user's own, is awaited by Asio.
///
/// Signature: `void(std::exception_ptr, T)`, `void(std::exception_ptr)` for a `task<void>`: the
/// exception is a `headrace::error` with its message, which an error code could not carry;
/// `use_awaitable` and `use_future` throw it. `T` is a `model` or default-constructible; where
/// there is an exception, it is empty.
///
/// The task begins and goes on on `target`, one step at a time, also where several threads run
/// that; it has timers (`with_timeout`, `sleep_for`). The completion comes on the handler's
/// associated executor (`target` where it has none); then the task runs there, too. Work is
/// outstanding on that executor until then, and Asio's half of the operation lives in memory of the
/// associated allocator.
///
/// Cancellation: each type stops the task. Where the context is destroyed first, the handler is
/// destroyed uncalled and the task is stopped: it ends soon after, on a thread of the runtime's, so
/// what it refers to must not belong to the handler.
///
///     auto config = co_await headrace::asio::async_run(executor, model.read_file("config.json"),
///                                                      boost::asio::use_awaitable);
template <class Executor, class T,
          BOOST_ASIO_COMPLETION_TOKEN_FOR(typename detail::asio_signature<T>::type) Token>
auto async_run(Executor target, task<T> work, Token&& token) {
  return boost::asio::async_initiate<Token, typename detail::asio_signature<T>::type>(
      [](auto handler, Executor fallback, task<T> begun) {
        detail::begin_asio<T>(
            std::move(handler), fallback, {.at_once = false},
            [](detail::asio_half* half) {
              return std::make_shared<detail::asio_operation_of<T>>(half);
            },
            [&begun](detail::asio_operation_of<T>&) { return std::move(begun); });
      },
      token, std::move(target), std::move(work));
}

}  // namespace headrace::asio
