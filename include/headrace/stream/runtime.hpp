#pragma once

#include <headrace/base/export.hpp>
#include <headrace/base/sizes.hpp>
#include <headrace/io/io_context.hpp>
#include <headrace/stream/loop_host.hpp>

#include <cstddef>
#include <memory>

namespace headrace {

namespace detail {
class runtime_state;
}

struct runtime_options {
  unsigned threads = 0;  ///< Loops, one thread each; 0: half the cores, at least 1, at most 8.
  io_backend backend = io_backend::automatic;  ///< `HEADRACE_IO` decides where this does not.
  std::size_t idle_memory = 512_MiB;           ///< Warm memory kept from one stream to the next.

  /// Drives the runtime's one loop, which then has no thread of its own; null: own threads. See
  /// `runtime`.
  std::shared_ptr<loop_host> host = nullptr;
};

/// The engine: loops, connections, memory. Make one for a process, or use `shared()`.
///
/// Starts its threads at the first use, none before. Its threads block all signals. The destructor
/// stops what still runs, waits for it and joins: the one destructor that waits. Streams that are
/// open then end with `cancelled`; tensors live on. Threads: any.
///
///     headrace::runtime runtime;
///     headrace::model model = headrace::sync_wait(headrace::open(runtime, "s3://bucket/prefix"));
///
/// With a host (`runtime_options::host`) the loop is made at once, on the thread that makes the
/// runtime, and belongs to that thread: it has to run the host and to destroy the runtime (not from
/// what the loop runs), and must not block on what the runtime does (`sync_wait` there would wait
/// for itself). Models and streams may still be used from any thread. A forked child cannot go on
/// with it: there, its streams are `cancelled`, and it takes another runtime.
class HEADRACE_API runtime {
 public:
  explicit runtime(runtime_options options = {});
  ~runtime();
  runtime(const runtime&) = delete;
  runtime& operator=(const runtime&) = delete;

  /// The process's own, made at the first call, never destroyed.
  [[nodiscard]] static runtime& shared();

  /// What talks to the kernel: never `automatic`.
  [[nodiscard]] io_backend backend() const;

  /// How many loops there are.
  [[nodiscard]] unsigned threads() const noexcept;

  [[nodiscard]] const std::shared_ptr<detail::runtime_state>& state() const noexcept {
    return state_;
  }

 private:
  std::shared_ptr<detail::runtime_state> state_;
};

}  // namespace headrace
