#pragma once

#include <headrace/coro/async_scope.hpp>
#include <headrace/http/http_pool.hpp>
#include <headrace/http/tcp_connector.hpp>
#include <headrace/io/blocking_pool.hpp>
#include <headrace/io/io_context.hpp>
#include <headrace/io/resolver.hpp>
#include <headrace/memory/host_pool.hpp>
#include <headrace/storage/transfer.hpp>
#include <headrace/stream/runtime.hpp>

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

namespace headrace::detail {

/// What one loop offers: made and destroyed on its thread.
class loop_services {
 public:
  loop_services(io_context::options given, token_buckets& buckets, random_source& random)
      : context_(given),
        names_(context_),
        connector_(context_, names_),
        connections_(context_, connector_),
        storage_{context_, connections_, buckets, random} {}

  [[nodiscard]] io_context& context() noexcept { return context_; }
  [[nodiscard]] storage_loop& storage() noexcept { return storage_; }

 private:
  io_context context_;
  resolver names_;
  tcp_connector connector_;
  http_pool connections_;
  storage_loop storage_;
};

/// The runtime behind its handle. Models and streams share it; once `stop` has been called it
/// starts nothing any more.
class runtime_state {
 public:
  explicit runtime_state(runtime_options options);
  runtime_state(const runtime_state&) = delete;
  runtime_state& operator=(const runtime_state&) = delete;
  ~runtime_state();

  /// Starts the loops at the first call. Throws `cancelled` after `stop`, `unsupported` where the
  /// backend cannot be had. Threads: any.
  void start();

  /// Stops everything, waits, joins. Not from what a loop runs; on the host's thread where there
  /// is one. A second call does nothing.
  void stop() noexcept;

  /// Throws `invalid_request` where `waiting`, an awaiter's executor, blocks the very thread that
  /// has to drive the loop.
  void check_waiter(const executor* waiting) const;

  [[nodiscard]] unsigned threads() const noexcept { return threads_; }
  [[nodiscard]] io_backend backend() const noexcept { return backend_; }

  /// Has what `make(loop)` gives run on a loop, as a part of what `stop` stops and waits for.
  /// Throws `cancelled` after `stop`. Threads: any.
  template <class Make>
  void spawn(Make make) {
    // Held over the posting: `stop` may otherwise end the loop in between.
    const std::lock_guard lock(mutex_);
    throw_if_stopped();
    auto& chosen = next_loop();
    parts_->streams.spawn(chosen.context(), make(chosen));
  }

  /// A loop; started ones only, and only from what `spawn` has started.
  [[nodiscard]] loop_services& loop(std::size_t number) noexcept {
    return *loops_[number % loops_.size()]->services;
  }

  [[nodiscard]] host_pool& memory() noexcept { return parts_->memory; }

  /// Counts the forks between this process and the one that made the runtime. What began under
  /// another number belongs to loops that do not exist here, and must be left alone.
  [[nodiscard]] std::uint64_t generation() const noexcept {
    return generation_.load(std::memory_order_relaxed);
  }

  /// Around a fork, in this order. `rest`: every loop stands still between two items, inside no
  /// lock of anybody's; until then loops may begin streams. `hold`: nobody starts or stops the
  /// runtime. Then it goes on, or, in the child, where its threads do not exist, all that was their
  /// own is left behind and the runtime is as new.
  void rest();
  void hold();
  [[nodiscard]] bool held() const noexcept { return held_; }
  void unpark() noexcept;
  void become_child() noexcept;

 private:
  /// What threads of the runtime may be inside of when another thread forks. A forked child makes
  /// these anew and never frees the old ones.
  struct parts {
    explicit parts(std::size_t idle_memory);

    token_buckets buckets;
    host_pool memory;
    std::optional<blocking_pool> helpers;
    async_scope streams;  ///< All that `stop` waits for: streams, and what `hosted` runs.
  };
  struct running_loop {
    std::thread thread;
    loop_services* services = nullptr;  ///< On the thread's stack.
  };
  class guest;

  void start_loop(running_loop& started);
  void start_hosted(std::shared_ptr<loop_host> host);
  void end_hosted() noexcept;
  [[nodiscard]] task<void> end_of_streams();
  [[nodiscard]] task<void> end_loop(io_context* loop);
  void throw_if_stopped() const;
  /// The loops in turn, for work that needs one.
  [[nodiscard]] loop_services& next_loop() noexcept {
    return loop(turn_.fetch_add(1, std::memory_order_relaxed));
  }

  const bool hosted_;  ///< The one loop is a host's.
  const std::thread::id host_thread_ = std::this_thread::get_id();
  const unsigned threads_;
  const io_backend backend_;
  const std::size_t idle_memory_;
  const std::unique_ptr<random_source> random_ = make_random_source();
  std::unique_ptr<parts> parts_;
  std::unique_ptr<guest> guest_;  ///< The loop that a host drives; then the only one.

  struct parking_place;
  std::unique_ptr<parking_place> parking_;
  std::atomic<std::uint64_t> generation_{0};  // relaxed: changes where there is but one thread

  std::mutex turns_;      ///< Held while a hosted loop runs something, and around a fork.
  bool resting_ = false;  ///< By the fork that is going on, whose thread alone looks at this.

  std::atomic<bool> prepared_{false};  ///< For forks; never unset.
  mutable std::mutex mutex_;
  bool started_ = false;
  bool stopped_ = false;
  bool held_ = false;
  std::vector<std::unique_ptr<running_loop>> loops_;
  std::atomic<std::size_t> turn_{0};  // relaxed: any spread will do
};

}  // namespace headrace::detail
