#pragma once

#include <headrace/base/error.hpp>
#include <headrace/coro/environment.hpp>

#include <boost/asio/async_result.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/post.hpp>
#include <boost/system/system_error.hpp>

#include <atomic>
#include <concepts>
#include <coroutine>
#include <exception>
#include <memory>
#include <optional>
#include <stop_token>
#include <tuple>
#include <type_traits>
#include <utility>

namespace headrace {
namespace asio {

/// The completion token that makes an Asio operation awaitable by a headrace coroutine.
///
///     boost::asio::steady_timer timer(context, 1s);
///     co_await timer.async_wait(headrace::asio::use_headrace);
///
/// Gives what the operation completes with: nothing, a value, or a tuple of several. A leading
/// error code is thrown as `boost::system::system_error`, an exception as it is; `as_tuple` around
/// the token gives them instead. The coroutine resumes on its environment's executor, whichever
/// thread the operation completes on; where it has none, there.
///
/// A stop of the environment emits terminal cancellation, and the operation's end is waited for;
/// where that is `operation_aborted`, it is thrown as `headrace::error` of kind `cancelled`. Where
/// the operation is destroyed uncalled, with its context, so is that.
///
/// This token begins the operation on the coroutine's thread and cancels it on the coroutine's
/// executor. That is right where the coroutine runs on the executor of the I/O object (`async_run`
/// on the same strand, or a context run by one thread); on a loop of the runtime, or in
/// `sync_wait`, use `use_headrace_on`.
struct use_headrace_t {};
inline constexpr use_headrace_t use_headrace{};

/// The same for a coroutine that runs elsewhere: begins, completes and cancels the operation on
/// `target`, which should be a strand or be run by one thread.
///
///     co_await timer.async_wait(headrace::asio::use_headrace_on(timer.get_executor()));
template <class Executor>
struct use_headrace_on_t {
  Executor target;
};
template <class Executor>
[[nodiscard]] use_headrace_on_t<Executor> use_headrace_on(Executor target) {
  return {std::move(target)};
}

}  // namespace asio

namespace detail {

/// What `use_headrace` has instead of an executor.
struct asio_in_place {};

template <class... Values>
class awaited_asio;

/// The completion handler. Dropped uncalled, it completes the operation, too.
template <class... Values>
class awaited_asio_handler_base {
 public:
  using cancellation_slot_type = boost::asio::cancellation_slot;

  explicit awaited_asio_handler_base(std::shared_ptr<awaited_asio<Values...>> state) noexcept
      : state_(std::move(state)) {}
  awaited_asio_handler_base(awaited_asio_handler_base&&) noexcept = default;
  awaited_asio_handler_base& operator=(awaited_asio_handler_base&&) = delete;
  ~awaited_asio_handler_base() {
    if (state_ != nullptr) state_->arrive();
  }

  [[nodiscard]] cancellation_slot_type get_cancellation_slot() const noexcept {
    return state_->signal.slot();
  }

  template <class... Given>
  void operator()(Given&&... given) {
    const auto state = std::exchange(state_, nullptr);
    state->results.emplace(std::forward<Given>(given)...);
    state->arrive();
  }

 private:
  std::shared_ptr<awaited_asio<Values...>> state_;
};

template <class Executor, class... Values>
class awaited_asio_handler final : public awaited_asio_handler_base<Values...> {
 public:
  using executor_type = Executor;

  awaited_asio_handler(std::shared_ptr<awaited_asio<Values...>> state, Executor target) noexcept
      : awaited_asio_handler_base<Values...>(std::move(state)), target_(std::move(target)) {}

  [[nodiscard]] executor_type get_executor() const noexcept { return target_; }

 private:
  Executor target_;
};

template <class... Values>
class awaited_asio_handler<asio_in_place, Values...> final
    : public awaited_asio_handler_base<Values...> {
 public:
  awaited_asio_handler(std::shared_ptr<awaited_asio<Values...>> state, asio_in_place) noexcept
      : awaited_asio_handler_base<Values...>(std::move(state)) {}
};

/// Shared by the awaiting coroutine, the completion handler and a cancellation on its way.
template <class... Values>
class awaited_asio : public std::enable_shared_from_this<awaited_asio<Values...>> {
 public:
  awaited_asio(environment given, std::coroutine_handle<> coroutine) noexcept
      : given_(std::move(given)), coroutine_(coroutine) {}
  awaited_asio(const awaited_asio&) = delete;
  awaited_asio& operator=(const awaited_asio&) = delete;
  virtual ~awaited_asio() = default;

  std::optional<std::tuple<Values...>> results;  ///< Empty: dropped.
  boost::asio::cancellation_signal signal;

  [[nodiscard]] bool stopped() const noexcept { return given_.stop.stop_requested(); }

  /// The coroutine has begun the operation: from now on a stop cancels it.
  void begun() {
    if (given_.stop.stop_possible()) stop_callback_.emplace(given_.stop, on_stop{this});
    arrive();
  }

  /// Once by who begins the operation and once by its completion: the second one resumes the
  /// coroutine.
  void arrive() noexcept {
    // Acquire and release: the second has seen what the first has written.
    if (arrived_.exchange(true, std::memory_order_acq_rel)) end();
  }

 protected:
  /// Has `emit` called where cancellation is to come from.
  virtual void post_cancel() noexcept = 0;

  [[nodiscard]] executor* target() const noexcept { return given_.executor; }

  /// Cancels the operation, unless it is over (`dropped`: only that), and resumes the coroutine
  /// where that has waited for this.
  void emit(bool dropped = false) noexcept {
    if (!dropped && cancelling_.load(std::memory_order_acquire) != over)
      signal.emit(boost::asio::cancellation_type::terminal);
    if (cancelling_.exchange(idle, std::memory_order_acq_rel) == over) resume();
  }

 private:
  struct on_stop {
    awaited_asio* state;
    void operator()() const noexcept {
      state->cancelling_.store(posted, std::memory_order_release);
      state->post_cancel();
    }
  };

  void end() noexcept {
    // After this nobody posts a cancellation any more.
    stop_callback_.reset();
    if (cancelling_.exchange(over, std::memory_order_acq_rel) != posted) resume();
  }

  void resume() noexcept {
    // The coroutine, resumed, lets go of this.
    const auto self = this->shared_from_this();
    resume_.resume_on(given_.executor, coroutine_);
  }

  enum cancelling : unsigned char { idle, posted, over };

  environment given_;
  std::coroutine_handle<> coroutine_;
  resume_item resume_;
  std::optional<std::stop_callback<on_stop>> stop_callback_;
  std::atomic<bool> arrived_{false};
  std::atomic<cancelling> cancelling_{idle};
};

/// With an executor of Asio's to cancel on.
template <class Executor, class... Values>
class awaited_asio_on final : public awaited_asio<Values...> {
 public:
  awaited_asio_on(environment given, std::coroutine_handle<> coroutine, Executor where) noexcept
      : awaited_asio<Values...>(std::move(given), coroutine), where_(std::move(where)) {}

 private:
  struct cancel {
    explicit cancel(std::shared_ptr<awaited_asio_on> cancelled) noexcept
        : state(std::move(cancelled)) {}
    cancel(cancel&&) noexcept = default;
    cancel& operator=(cancel&&) = delete;
    ~cancel() {
      if (state != nullptr) state->emit(true);
    }
    void operator()() { std::exchange(state, nullptr)->emit(); }
    std::shared_ptr<awaited_asio_on> state;
  };

  void post_cancel() noexcept override {
    boost::asio::post(where_,
                      cancel(std::static_pointer_cast<awaited_asio_on>(this->shared_from_this())));
  }

  Executor where_;
};

/// Without: on the coroutine's executor.
template <class... Values>
class awaited_asio_on<asio_in_place, Values...> final : public awaited_asio<Values...> {
 public:
  awaited_asio_on(environment given, std::coroutine_handle<> coroutine, asio_in_place) noexcept
      : awaited_asio<Values...>(std::move(given), coroutine) {}

 private:
  struct cancel_item final : work_item {
    cancel_item() noexcept : work_item(&run_cancel) {}
    static void run_cancel(work_item& item) noexcept {
      const auto state = std::move(static_cast<cancel_item&>(item).state);
      state->emit();
    }
    std::shared_ptr<awaited_asio_on> state;
  };

  void post_cancel() noexcept override {
    cancel_.state = std::static_pointer_cast<awaited_asio_on>(this->shared_from_this());
    if (executor* const home = this->target(); home != nullptr) {
      home->post(cancel_);
    } else {
      cancel_.run(cancel_);
    }
  }

  cancel_item cancel_;
};

/// What a completion gives, without the leading failure.
template <class... Values>
struct asio_results {
  static auto take(std::tuple<Values...>&& results, bool) { return pick(std::move(results)); }

  template <class... Some>
  static auto pick(std::tuple<Some...>&& results) {
    if constexpr (sizeof...(Some) == 1) {
      return std::get<0>(std::move(results));
    } else if constexpr (sizeof...(Some) > 1) {
      return std::move(results);
    }
  }
};

template <class... Rest>
struct asio_results<boost::system::error_code, Rest...> {
  static auto take(std::tuple<boost::system::error_code, Rest...>&& results, bool stopped) {
    const auto failed = std::get<0>(results);
    if (failed == boost::asio::error::operation_aborted && stopped)
      throw error(errc::cancelled, "stopped while waiting for an Asio operation");
    if (failed) throw boost::system::system_error(failed);
    return std::apply(
        [](auto&, auto&... rest) {
          return asio_results<Rest...>::pick(std::tuple<Rest...>(std::move(rest)...));
        },
        results);
  }
};

template <class... Rest>
struct asio_results<std::exception_ptr, Rest...> {
  static auto take(std::tuple<std::exception_ptr, Rest...>&& results, bool stopped) {
    if (std::get<0>(results)) rethrow(std::get<0>(results), stopped);
    return std::apply(
        [](auto&, auto&... rest) {
          return asio_results<Rest...>::pick(std::tuple<Rest...>(std::move(rest)...));
        },
        results);
  }

  [[noreturn]] static void rethrow(const std::exception_ptr& failed, bool stopped) {
    try {
      std::rethrow_exception(failed);
    } catch (const boost::system::system_error& known) {
      if (known.code() != boost::asio::error::operation_aborted || !stopped) throw;
    }
    throw error(errc::cancelled, "stopped while waiting for an Asio operation");
  }
};

/// The awaitable that an initiating function gives for the token.
template <class Executor, class Initiation, class Arguments, class... Values>
class [[nodiscard]] awaitable_asio final {
 public:
  awaitable_asio(Executor target, Initiation initiation, Arguments arguments)
      : target_(std::move(target)),
        initiation_(std::move(initiation)),
        arguments_(std::move(arguments)) {}

  [[nodiscard]] bool await_ready() const noexcept { return false; }

  template <class Promise>
  bool await_suspend(std::coroutine_handle<Promise> awaiting) {
    environment given = environment_of(awaiting);
    if (given.stop.stop_requested()) return false;
    const auto state =
        std::make_shared<awaited_asio_on<Executor, Values...>>(std::move(given), awaiting, target_);
    // Before the operation can complete: this may be gone as soon as it has begun.
    state_ = state;
    handler_type handler(state, target_);
    if constexpr (std::same_as<Executor, asio_in_place>) {
      begin(std::move(initiation_), std::move(handler), std::move(arguments_));
    } else {
      const Executor target = target_;
      boost::asio::dispatch(
          target, [initiation = std::move(initiation_), handler = std::move(handler),
                   arguments = std::move(arguments_)]() mutable {
            begin(std::move(initiation), std::move(handler), std::move(arguments));
          });
    }
    state->begun();
    return true;
  }

  auto await_resume() {
    if (state_ == nullptr)
      throw error(errc::cancelled, "stopped before an Asio operation had begun");
    if (!state_->results)
      throw error(errc::cancelled, "an Asio operation was dropped with its execution context");
    return asio_results<Values...>::take(std::move(*state_->results), state_->stopped());
  }

 private:
  using handler_type = awaited_asio_handler<Executor, Values...>;

  static void begin(Initiation initiation, handler_type handler, Arguments arguments) {
    std::apply(
        [&](auto&&... given) {
          std::move(initiation)(std::move(handler), std::forward<decltype(given)>(given)...);
        },
        std::move(arguments));
  }

  Executor target_;
  Initiation initiation_;
  Arguments arguments_;
  std::shared_ptr<awaited_asio<Values...>> state_;
};

}  // namespace detail
}  // namespace headrace

/// @cond
template <class Result, class... Values>
struct boost::asio::async_result<headrace::asio::use_headrace_t, Result(Values...)> {
  template <class Initiation, class... Arguments>
  static auto initiate(Initiation&& initiation, headrace::asio::use_headrace_t,
                       Arguments&&... arguments) {
    using given = std::tuple<std::decay_t<Arguments>...>;
    return headrace::detail::awaitable_asio<
        headrace::detail::asio_in_place, std::decay_t<Initiation>, given, std::decay_t<Values>...>(
        {}, std::forward<Initiation>(initiation), given(std::forward<Arguments>(arguments)...));
  }
};

template <class Executor, class Result, class... Values>
struct boost::asio::async_result<headrace::asio::use_headrace_on_t<Executor>, Result(Values...)> {
  template <class Initiation, class... Arguments>
  static auto initiate(Initiation&& initiation, headrace::asio::use_headrace_on_t<Executor> token,
                       Arguments&&... arguments) {
    using given = std::tuple<std::decay_t<Arguments>...>;
    return headrace::detail::awaitable_asio<Executor, std::decay_t<Initiation>, given,
                                            std::decay_t<Values>...>(
        std::move(token.target), std::forward<Initiation>(initiation),
        given(std::forward<Arguments>(arguments)...));
  }
};
/// @endcond
