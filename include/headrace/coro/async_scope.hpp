#pragma once

#include <headrace/base/export.hpp>
#include <headrace/coro/async_condition.hpp>
#include <headrace/coro/task.hpp>

#include <exception>
#include <mutex>

namespace headrace {

/// Where concurrent tasks live: everything spawned is joined.
///
/// The first exception of a spawned task is kept, requests stop of the others and is rethrown by
/// `join`. Destroying a scope in which tasks still run is a broken invariant.
///
///     async_scope scope;
///     for (auto& shard : shards) scope.spawn(loop, read_header(shard));
///     co_await scope.join();
class HEADRACE_API async_scope {
 public:
  /// Tasks spawned here stop when `parent` does.
  explicit async_scope(std::stop_token parent = {});
  async_scope(const async_scope&) = delete;
  async_scope& operator=(const async_scope&) = delete;
  ~async_scope();

  /// Starts `work` on `target`, which it also resumes on. Threads: any.
  void spawn(executor& target, task<void> work);

  /// Waits until everything spawned has finished, also under a stop; rethrows the first exception.
  /// What is spawned meanwhile is awaited too. May be called again.
  [[nodiscard]] task<void> join();

  /// Stops what was spawned and what will be. Threads: any.
  void request_stop() noexcept { forward_stop{&stop_}(); }
  [[nodiscard]] std::stop_token stop_token() const noexcept { return stop_.get_token(); }

  /// How many spawned tasks have not finished yet.
  [[nodiscard]] std::size_t running() const;

 private:
  struct root;
  static root run(async_scope& scope, task<void> work, environment given);
  void finished(std::exception_ptr failed) noexcept;

  struct forward_stop {
    std::stop_source* to;
    void operator()() const noexcept {
      // A copy: what is stopped may end on this thread, and its joiner may then destroy the scope.
      std::stop_source kept = *to;
      kept.request_stop();
    }
  };

  std::stop_source stop_;
  std::stop_callback<forward_stop> parent_;
  mutable std::mutex mutex_;
  async_condition idle_;
  std::size_t running_ = 0;
  std::exception_ptr first_failure_;
};

}  // namespace headrace
