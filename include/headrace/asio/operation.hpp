#pragma once

#include <headrace/base/clock.hpp>
#include <headrace/coro/executor.hpp>
#include <headrace/coro/task.hpp>
#include <headrace/coro/with.hpp>
#include <headrace/stream/model.hpp>

#include <boost/asio/associated_allocator.hpp>
#include <boost/asio/associated_cancellation_slot.hpp>
#include <boost/asio/associated_executor.hpp>
#include <boost/asio/basic_waitable_timer.hpp>
#include <boost/asio/cancellation_type.hpp>
#include <boost/asio/execution/context.hpp>
#include <boost/asio/execution_context.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/query.hpp>

#include <atomic>
#include <chrono>
#include <concepts>
#include <coroutine>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <thread>
#include <type_traits>
#include <utility>
#include <variant>

// What the initiating functions of this room share. Not for users.

namespace headrace::detail {

class asio_operation;

/// Asio's half of an operation: the handler, its executor, the outstanding work. It ends with the
/// completion or with the context, whichever comes first.
class asio_half {
 public:
  /// Has `operation` take a turn on the handler's executor. Threads: any.
  virtual void post_turn(std::shared_ptr<asio_operation> operation) = 0;
  /// Has `operation` look at its timers at `deadline`, or earlier where an earlier one was asked
  /// for.
  virtual void arm_timer(std::shared_ptr<asio_operation> operation, steady_time deadline) = 0;
  /// Destroys the handler without calling it.
  virtual void destroy() noexcept = 0;

 protected:
  ~asio_half() = default;
};

/// The operations that wait within one execution context.
struct asio_registry {
  std::mutex mutex;
  asio_operation* first = nullptr;
};

/// headrace's half of an operation: the coroutine, and the executor that it runs on, which takes
/// turns on the handler's executor, one at a time: so a coroutine on several threads is never in
/// two places at once, and timers need no lock.
///
/// When the context is destroyed first, Asio's half goes with it, as Asio demands; this half is
/// stopped and finishes by itself, on whichever thread ends what it waits for, and nobody hears of
/// it.
class asio_operation : public executor,
                       public timer_service,
                       public std::enable_shared_from_this<asio_operation> {
 public:
  explicit asio_operation(asio_half* half) noexcept : half_(half) {}
  asio_operation(const asio_operation&) = delete;
  asio_operation& operator=(const asio_operation&) = delete;
  virtual ~asio_operation() = default;

  void post(work_item& item) noexcept override {
    std::unique_lock lock(mutex_);
    items_.push(item);
    if (std::exchange(busy_, true)) return;
    if (half_ != nullptr) {
      turn_posted_ = true;
      // Under the lock: until it is released, the context cannot get past `abandon`.
      half_->post_turn(shared_from_this());
      return;
    }
    lock.unlock();
    run_alone();
  }

  [[nodiscard]] timer_service* timers() noexcept override { return this; }
  void start_timer(timer_item& item, steady_time deadline) override {
    timers_.start(item, deadline);
  }
  void cancel_timer(timer_item& item) noexcept override { timers_.cancel(item); }
  [[nodiscard]] steady_time now() const noexcept override { return real_clock().now(); }

  [[nodiscard]] const std::stop_source& stop() const noexcept { return stop_; }

  /// Whether the caller is within a turn.
  [[nodiscard]] bool here() const noexcept {
    return runner_.load(std::memory_order_relaxed) == std::this_thread::get_id();
  }

  /// The coroutine has come to its end. Within a turn.
  void finish() noexcept { finished_ = true; }

  /// Runs `begun` on the caller's thread as far as it goes without waiting; gives whether that was
  /// to its end. Otherwise it goes on in turns: call `wait` next.
  bool begin(std::coroutine_handle<> begun) noexcept {
    busy_ = true;
    enter();
    begun.resume();
    leave();
    return finished_;
  }

  /// Lets turns begin, and the end of the context end the operation.
  void wait(std::shared_ptr<asio_registry> registry) {
    registry_ = std::move(registry);
    {
      const std::lock_guard lock(registry_->mutex);
      next_ = registry_->first;
      if (next_ != nullptr) next_->previous_ = this;
      registry_->first = this;
      listed_ = true;
    }
    end_turn();
  }

  /// Called by the handler's executor.
  void take_turn() {
    const auto self = shared_from_this();
    {
      const std::lock_guard lock(mutex_);
      // Abandoned meanwhile.
      if (!std::exchange(turn_posted_, false)) return;
    }
    enter();
    run_items();
    timers_.run_due(now());
    leave();
    if (finished_) {
      asio_half* half = nullptr;
      {
        const std::lock_guard lock(mutex_);
        half = std::exchange(half_, nullptr);
      }
      unlist();
      // The last thing here: the handler may throw.
      if (half != nullptr) complete(*half);
      return;
    }
    end_turn();
  }

  /// A timer of Asio's has fired.
  void timer_fired() noexcept {
    {
      const std::lock_guard lock(mutex_);
      armed_ = steady_time::max();
      if (half_ == nullptr || due_.queued.exchange(true)) return;
    }
    post(due_);
  }

  /// The context ends, or has dropped a turn.
  void abandon() noexcept {
    const auto self = shared_from_this();
    asio_half* half = nullptr;
    bool dropped = false;
    {
      const std::lock_guard lock(mutex_);
      half = std::exchange(half_, nullptr);
      dropped = std::exchange(turn_posted_, false);
    }
    if (half == nullptr) return;
    // The handler goes last: it may own what the coroutine works on.
    request_stop_of(stop_);
    if (dropped) run_alone();
    half->destroy();
  }

  /// Takes the handler from the operation, which is over: before anything was waited for.
  [[nodiscard]] asio_half* take_half() noexcept { return std::exchange(half_, nullptr); }

  /// Ends all operations of a context.
  static void abandon_all(asio_registry& registry) noexcept {
    for (;;) {
      std::shared_ptr<asio_operation> one;
      {
        const std::lock_guard lock(registry.mutex);
        asio_operation* const first = registry.first;
        if (first == nullptr) return;
        one = first->weak_from_this().lock();
        first->unlink(registry);
      }
      if (one != nullptr) one->abandon();
    }
  }

 protected:
  /// Calls the handler, on its executor, and frees `half`.
  virtual void complete(asio_half& half) = 0;

  void unlist() noexcept {
    if (registry_ == nullptr) return;
    const std::lock_guard lock(registry_->mutex);
    if (listed_) unlink(*registry_);
  }

 private:
  struct due_item final : work_item {
    due_item() noexcept : work_item(&note) {}
    // Every turn looks at the timers: this one only has to be taken.
    static void note(work_item& item) noexcept { static_cast<due_item&>(item).queued = false; }
    std::atomic<bool> queued{false};
  };

  void enter() noexcept { runner_.store(std::this_thread::get_id(), std::memory_order_relaxed); }
  void leave() noexcept { runner_.store({}, std::memory_order_relaxed); }

  work_item* pop() noexcept {
    const std::lock_guard lock(mutex_);
    return items_.pop();
  }

  void run_items() noexcept {
    // A bound, so that a busy coroutine does not keep the thread from everything else.
    constexpr int most = 64;
    for (int count = 0; count < most; ++count) {
      work_item* const item = pop();
      if (item == nullptr) return;
      item->run(*item);
    }
  }

  /// Another turn where there is more to do, and a timer for the next deadline.
  void end_turn() {
    {
      const std::lock_guard lock(mutex_);
      if (items_.empty()) {
        busy_ = false;
      } else if (half_ != nullptr) {
        turn_posted_ = true;
        half_->post_turn(shared_from_this());
      }
      if (half_ != nullptr) {
        const auto next = timers_.next();
        if (!next || *next >= armed_) return;
        armed_ = *next;
        half_->arm_timer(shared_from_this(), *next);
        return;
      }
      if (!busy_) return;
    }
    run_alone();
  }

  /// Without a context: on the caller's thread, which has set `busy_` or has it from a turn.
  void run_alone() noexcept {
    const auto self = shared_from_this();
    bool over = false;
    enter();
    for (;;) {
      work_item* item = nullptr;
      {
        const std::lock_guard lock(mutex_);
        item = items_.pop();
        if (item == nullptr) {
          over = finished_;
          leave();
          busy_ = false;
          break;
        }
      }
      item->run(*item);
    }
    if (over) unlist();
  }

  // With the registry's mutex held.
  void unlink(asio_registry& registry) noexcept {
    (previous_ != nullptr ? previous_->next_ : registry.first) = next_;
    if (next_ != nullptr) next_->previous_ = previous_;
    next_ = previous_ = nullptr;
    listed_ = false;
  }

  std::stop_source stop_;
  std::mutex mutex_;
  work_queue items_;
  asio_half* half_;           ///< Null once completed or abandoned.
  bool busy_ = false;         ///< A turn is posted or being taken.
  bool turn_posted_ = false;  ///< Posted, and not begun.
  steady_time armed_ = steady_time::max();
  due_item due_;
  std::atomic<std::thread::id> runner_{};  // compared with oneself alone

  // Within turns.
  timer_queue timers_;
  bool finished_ = false;

  // The registry's.
  std::shared_ptr<asio_registry> registry_;
  asio_operation* next_ = nullptr;
  asio_operation* previous_ = nullptr;
  bool listed_ = false;
};

/// Ends the operations of its context when that is destroyed.
class asio_service final : public boost::asio::execution_context::service {
 public:
  using key_type = asio_service;
  static inline boost::asio::execution_context::id id;

  explicit asio_service(boost::asio::execution_context& owner)
      : boost::asio::execution_context::service(owner) {}

  [[nodiscard]] const std::shared_ptr<asio_registry>& registry() const noexcept {
    return registry_;
  }

 private:
  void shutdown() noexcept override { asio_operation::abandon_all(*registry_); }

  const std::shared_ptr<asio_registry> registry_ = std::make_shared<asio_registry>();
};

/// What a handler gets beside a failure: nothing of use.
template <class T>
struct asio_nothing {
  static T make() { return T(); }
};

template <>
struct asio_nothing<model> {
  static model make() noexcept { return model(nullptr); }
};

template <class T>
struct asio_signature {
  using type = void(std::exception_ptr, T);
};
template <>
struct asio_signature<void> {
  using type = void(std::exception_ptr);
};

template <class T>
struct asio_outcome {
  std::exception_ptr failure;
  std::optional<std::conditional_t<std::is_void_v<T>, std::monostate, T>> value;

  /// Calls `handler` with this.
  template <class Handler>
  void give(Handler&& handler) {
    if constexpr (std::is_void_v<T>) {
      std::forward<Handler>(handler)(std::move(failure));
    } else if (value) {
      std::forward<Handler>(handler)(std::exception_ptr(), std::move(*value));
    } else {
      std::forward<Handler>(handler)(std::move(failure), asio_nothing<T>::make());
    }
  }
};

template <class T>
class asio_half_of : public asio_half {
 public:
  /// Frees itself and calls the handler. On the handler's executor.
  virtual void complete(asio_outcome<T> outcome) = 0;
  /// The same by way of the executor: from an initiating function.
  virtual void post_completion(asio_outcome<T> outcome) = 0;

 protected:
  ~asio_half_of() = default;
};

template <class T>
class asio_operation_of : public asio_operation {
 public:
  using asio_operation::asio_operation;

  asio_outcome<T> outcome;

  /// For an operation that has not waited for anything.
  void complete_later() {
    asio_half* const half = take_half();
    give_back();
    static_cast<asio_half_of<T>*>(half)->post_completion(std::move(outcome));
  }

  /// Returns to its owner what the operation has taken: before the handler is called, not where it
  /// was abandoned.
  virtual void give_back() noexcept {}

 private:
  void complete(asio_half& half) final {
    give_back();
    static_cast<asio_half_of<T>&>(half).complete(std::move(outcome));
  }
};

/// A turn on its way through an executor. Where that drops it, the operation goes on alone.
class asio_turn {
 public:
  explicit asio_turn(std::shared_ptr<asio_operation> operation) noexcept
      : operation_(std::move(operation)) {}
  asio_turn(asio_turn&&) noexcept = default;
  asio_turn& operator=(asio_turn&&) = delete;
  ~asio_turn() {
    if (operation_ != nullptr) operation_->abandon();
  }
  void operator()() { std::exchange(operation_, nullptr)->take_turn(); }

 private:
  std::shared_ptr<asio_operation> operation_;
};

template <class T, class Handler, class Executor>
class asio_handler final : public asio_half_of<T> {
  using allocator = typename std::allocator_traits<
      boost::asio::associated_allocator_t<Handler>>::template rebind_alloc<asio_handler>;
  using timer = boost::asio::basic_waitable_timer<
      std::chrono::steady_clock, boost::asio::wait_traits<std::chrono::steady_clock>, Executor>;

 public:
  asio_handler(Handler handler, const Executor& target)
      : handler_(std::move(handler)), work_(target) {}
  asio_handler(const asio_handler&) = delete;
  asio_handler& operator=(const asio_handler&) = delete;

  /// In memory of the handler's allocator.
  static asio_handler* make(Handler handler, const Executor& target) {
    allocator memory(boost::asio::get_associated_allocator(handler));
    asio_handler* const made = std::allocator_traits<allocator>::allocate(memory, 1);
    try {
      return ::new (static_cast<void*>(made)) asio_handler(std::move(handler), target);
    } catch (...) {
      std::allocator_traits<allocator>::deallocate(memory, made, 1);
      throw;
    }
  }

  [[nodiscard]] Handler& handler() noexcept { return handler_; }

  void post_turn(std::shared_ptr<asio_operation> operation) override {
    boost::asio::post(work_.get_executor(), asio_turn(std::move(operation)));
  }

  void arm_timer(std::shared_ptr<asio_operation> operation, steady_time deadline) override {
    if (!timer_) timer_.emplace(work_.get_executor());
    timer_->expires_at(deadline);
    timer_->async_wait([operation = std::move(operation)](boost::system::error_code failed) {
      if (!failed) operation->timer_fired();
    });
  }

  void destroy() noexcept override {
    const Handler handler = release();
    static_cast<void>(handler);
  }

  void complete(asio_outcome<T> outcome) override {
    // Until the handler has returned.
    const auto work = std::move(work_);
    Handler handler = release();
    clear_slot(handler);
    outcome.give(std::move(handler));
  }

  void post_completion(asio_outcome<T> outcome) override {
    const auto work = std::move(work_);
    Handler handler = release();
    clear_slot(handler);
    boost::asio::post(work.get_executor(), completion{std::move(handler), std::move(outcome)});
  }

 private:
  struct completion {
    using allocator_type = boost::asio::associated_allocator_t<Handler>;

    [[nodiscard]] allocator_type get_allocator() const noexcept {
      return boost::asio::get_associated_allocator(handler);
    }
    void operator()() { outcome.give(std::move(handler)); }

    Handler handler;
    asio_outcome<T> outcome;
  };

  // Not where the handler is destroyed uncalled: the signal may be gone by then.
  static void clear_slot(const Handler& handler) {
    auto slot = boost::asio::get_associated_cancellation_slot(handler);
    if (slot.is_connected()) slot.clear();
  }

  /// Takes the handler out and frees everything else: Asio's rule is that an operation holds no
  /// memory any more when its handler is called.
  Handler release() noexcept {
    timer_.reset();
    Handler handler(std::move(handler_));
    allocator memory(boost::asio::get_associated_allocator(handler));
    this->~asio_handler();
    std::allocator_traits<allocator>::deallocate(memory, this, 1);
    return handler;
  }

  ~asio_handler() = default;

  Handler handler_;
  boost::asio::executor_work_guard<Executor> work_;
  std::optional<timer> timer_;
};

/// The outermost coroutine of an operation.
struct asio_root {
  struct promise_type final : promise_environment {
    [[nodiscard]] asio_root get_return_object() noexcept {
      return {std::coroutine_handle<promise_type>::from_promise(*this)};
    }
    [[nodiscard]] std::suspend_always initial_suspend() const noexcept { return {}; }
    [[nodiscard]] std::suspend_never final_suspend() const noexcept { return {}; }
    void return_void() const noexcept {}
    void unhandled_exception() const noexcept { std::terminate(); }  // the body catches everything
  };

  std::coroutine_handle<promise_type> coroutine;
};

template <class T>
asio_root run_asio(std::shared_ptr<asio_operation_of<T>> operation, task<T> work, bool at_once) {
  co_await move_to_executor{at_once ? nullptr : operation.get()};
  {
    task<T> running = std::move(work);
    try {
      if constexpr (std::is_void_v<T>) {
        co_await std::move(running);
        operation->outcome.value.emplace();
      } else {
        T value = co_await std::move(running);
        operation->outcome.value.emplace(std::move(value));
      }
    } catch (...) {
      operation->outcome.failure = std::current_exception();
    }
  }
  // An awaitable of somebody else's may have resumed us elsewhere.
  co_await move_to_executor{operation->here() ? nullptr : operation.get()};
  operation->finish();
}

/// What a cancellation slot calls. Owns a part of the stop state: it may stay in the slot for
/// longer than the operation lives.
struct asio_cancel {
  std::stop_source stop;
  boost::asio::cancellation_type honoured;

  void operator()(boost::asio::cancellation_type wanted) const noexcept {
    if ((wanted & honoured) != boost::asio::cancellation_type::none) request_stop_of(stop);
  }
};

/// How an initiating function begins its work.
struct asio_beginning {
  bool at_once = true;  ///< On the caller's thread, until it waits; false: on the executor.
  boost::asio::cancellation_type honoured = boost::asio::cancellation_type::all;
};

/// Starts `work(operation)`, whose end calls `handler` on its associated executor, `fallback` where
/// it has none. `make(half)` makes the operation.
template <class T, class Handler, class Fallback, class Make, class Work>
void begin_asio(Handler handler, const Fallback& fallback, asio_beginning how, Make make,
                Work work) {
  const auto target = boost::asio::get_associated_executor(handler, fallback);
  using half_type = asio_handler<T, Handler, std::remove_cvref_t<decltype(target)>>;
  half_type* const half = half_type::make(std::move(handler), target);
  decltype(make(half)) operation;
  std::shared_ptr<asio_registry> registry;
  std::optional<asio_root> root;
  try {
    auto& context = static_cast<boost::asio::execution_context&>(
        boost::asio::query(target, boost::asio::execution::context));
    registry = boost::asio::use_service<asio_service>(context).registry();
    operation = make(half);
    root = run_asio<T>(operation, work(*operation), how.at_once);
    auto slot = boost::asio::get_associated_cancellation_slot(half->handler());
    if (slot.is_connected()) slot.assign(asio_cancel{operation->stop(), how.honoured});
  } catch (...) {
    if (root) root->coroutine.destroy();
    if (operation != nullptr) operation->give_back();
    half->destroy();
    throw;
  }
  root->coroutine.promise().set_environment(
      {.executor = operation.get(), .stop = operation->stop().get_token()});
  if (operation->begin(root->coroutine)) {
    operation->complete_later();
    return;
  }
  operation->wait(std::move(registry));
}

}  // namespace headrace::detail
