#pragma once

#include <headrace/asio/operation.hpp>
#include <headrace/coro/async_generator.hpp>

#include <boost/asio/async_result.hpp>
#include <boost/asio/system_executor.hpp>

#include <utility>

namespace headrace {
namespace detail {

/// Holds the generator while it waits: so that who awaits it may be destroyed with its context.
template <class T>
class asio_next final : public asio_operation_of<T*> {
 public:
  asio_next(asio_half* half, async_generator<T>& owner) noexcept
      : asio_operation_of<T*>(half), owner_(owner), held_(std::move(owner)) {}

  [[nodiscard]] task<T*> next() { return held_.next(); }

  void give_back() noexcept override { owner_ = std::move(held_); }

 private:
  async_generator<T>& owner_;  // Destroyed together with an abandoned handler.
  async_generator<T> held_;
};

}  // namespace detail

namespace asio {

/// `async_generator::next` with a completion token: of `model::stream`, and of any other generator.
///
/// Signature: `void(std::exception_ptr, T*)`. The pointer is that of `next()`: null at the end,
/// valid until the following `async_next`, `async_close` or the generator's destruction, and what
/// it points to may be moved out. An exception is a `headrace::error` (see `async_run`).
///
/// `values` must stay where it is until the completion, and nothing else may use it meanwhile. It
/// may go without waiting where its owner goes uncalled with its context: what it was then ends in
/// the background. Completes on the handler's associated executor, without one on the system
/// executor. A value that is ready is posted at once. Cancellation: terminal and partial end the
/// stream, as a stop does: that `async_next` gives `cancelled` and later ones null; total is
/// ignored, since the values that were under way are lost.
///
///     while (auto* tensor = co_await headrace::asio::async_next(tensors, use_awaitable))
///       use(tensor->name(), tensor->bytes());
template <class T, BOOST_ASIO_COMPLETION_TOKEN_FOR(void(std::exception_ptr, T*)) Token>
auto async_next(async_generator<T>& values, Token&& token) {
  return boost::asio::async_initiate<Token, void(std::exception_ptr, T*)>(
      [](auto handler, async_generator<T>* from) {
        detail::begin_asio<T*>(
            std::move(handler), boost::asio::system_executor(),
            {.honoured = boost::asio::cancellation_type::terminal |
                         boost::asio::cancellation_type::partial},
            [from](detail::asio_half* half) {
              return std::make_shared<detail::asio_next<T>>(half, *from);
            },
            [](detail::asio_next<T>& operation) { return operation.next(); });
      },
      token, &values);
}

}  // namespace asio
}  // namespace headrace
