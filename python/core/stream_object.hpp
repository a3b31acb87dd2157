#pragma once

#include "call.hpp"

#include <headrace/coro/async_condition.hpp>
#include <headrace/coro/async_generator.hpp>
#include <headrace/stream/model.hpp>

#include <atomic>
#include <memory>
#include <mutex>

namespace headrace::python {

/// A stream in Python's hands: one `next` at a time, `close` from any thread.
///
/// Dropping it ends the stream without waiting.
class stream_object {
 public:
  stream_object(const model& from, stream_options options);

  /// The next tensor, None at the end. Throws `cancelled` where `close` came first or meanwhile.
  /// See `begin` for `on`.
  [[nodiscard]] nb::object next(std::shared_ptr<event_executor> on);

  /// Ends the stream: stops a `next` that is under way, and waits until nothing is left running and
  /// all memory is given back. May be called again. See `begin` for `on`.
  [[nodiscard]] nb::object close(std::shared_ptr<event_executor> on);

  /// Makes a `next` that is under way throw `cancelled`, and all to come. Threads: any.
  void stop() noexcept;

  /// `(bytes, total bytes, tensors, total tensors)`: zeros before the first tensor is asked for.
  [[nodiscard]] nb::object progress() const;

 private:
  struct counters {
    // relaxed, each right for itself
    std::atomic<std::uint64_t> bytes{0};
    std::atomic<std::uint64_t> total_bytes{0};
    std::atomic<std::uint64_t> tensors{0};
    std::atomic<std::uint64_t> total_tensors{0};
  };
  /// Shared with the call that is under way.
  struct state {
    async_generator<tensor> tensors;
    std::stop_source stop;
    std::mutex mutex;
    async_condition idle;
    bool busy = false;
    bool closed = false;
  };
  class turn;

  static async_generator<tensor> open(const model& from, stream_options options,
                                      const std::shared_ptr<counters>& counted);
  static task<std::optional<tensor>> take_next(std::shared_ptr<state> stream);
  static task<void> finish(std::shared_ptr<state> stream);

  std::shared_ptr<counters> counters_ = std::make_shared<counters>();
  std::shared_ptr<state> state_ = std::make_shared<state>();
};

void bind_stream(nb::module_& module);

}  // namespace headrace::python
