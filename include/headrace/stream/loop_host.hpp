#pragma once

#include <headrace/base/clock.hpp>
#include <headrace/base/export.hpp>

#include <optional>

namespace headrace {

/// The loop of a runtime that has no thread of its own, as its host sees it.
///
/// Threads: the one that made the runtime; `left_behind` any. Not from what `poll` runs.
class HEADRACE_API hosted_loop {
 public:
  /// Readable whenever `poll` has something to do. Only to be watched, never read; it may be
  /// watched by way of a duplicate. Open until the host has been detached.
  [[nodiscard]] virtual int descriptor() const noexcept = 0;

  /// Does what there is to do, without waiting. Gives when to come again though the descriptor is
  /// not readable: at once (a time in the past), at a time, or never (empty).
  ///
  /// Throws `invalid_request` on any other thread than that of the runtime.
  virtual std::optional<steady_time> poll() = 0;

  /// Whether this process is a fork of the one that made the runtime: nothing is to be watched
  /// here, and `poll` does nothing.
  [[nodiscard]] virtual bool left_behind() const noexcept = 0;

  /// The host is about to end: stops what still runs, waits for it and detaches the host. Streams
  /// then end with `cancelled`, as if the runtime had been destroyed.
  virtual void end() noexcept = 0;

 protected:
  ~hosted_loop() = default;
};

/// An event loop of somebody else's that drives the loop of a runtime: see `runtime_options::host`.
class HEADRACE_API loop_host {
 public:
  virtual ~loop_host() = default;

  /// From now on calls `loop.poll()`: soon, then whenever the descriptor is readable and whenever
  /// the time has come that it gave. What it throws leaves the runtime's constructor. Threads: the
  /// one that makes the runtime.
  virtual void attach(hosted_loop& loop) = 0;

  /// From now on leaves the loop alone. Threads: the same.
  virtual void detach() noexcept = 0;
};

}  // namespace headrace
