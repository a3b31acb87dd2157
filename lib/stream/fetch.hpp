#pragma once

#include "stream/concurrency.hpp"
#include "stream/destinations.hpp"
#include "stream/model_state.hpp"
#include "stream/plan.hpp"

#include <headrace/coro/async_condition.hpp>
#include <headrace/coro/async_generator.hpp>
#include <headrace/coro/async_scope.hpp>
#include <headrace/device/charged_block.hpp>
#include <headrace/memory/host_arena.hpp>
#include <headrace/storage/range_sink.hpp>
#include <headrace/stream/tensor.hpp>

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

namespace headrace {

/// One stream at work: admits tensors in plan order, cuts them into ranges, has workers on the
/// runtime's loops receive these, and hands over what is complete.
///
/// Why a mutex and not a loop that owns the state: workers run on several loops and the consumer on
/// another thread, each touches the state once a range or a batch of tensors, for less than a
/// microsecond; a hop to an owning loop would cost each of them a wake-up. Nothing is awaited, and
/// no block is dropped (which calls `memory_released`), while it is held. Lock order: this, then
/// the arena's.
///
/// Lifetime: shared by the generator's body and by the task in the runtime's scope; whichever is
/// last frees it.
class fetch final : public release_listener, public std::enable_shared_from_this<fetch> {
 public:
  fetch(std::shared_ptr<const detail::model_state> model, detail::stream_plan plan,
        stream_options options);
  ~fetch() override;

  /// The generator of a stream. `options` are checked and the plan is made at the first `next()`.
  [[nodiscard]] static async_generator<tensor> stream(
      std::shared_ptr<const detail::model_state> model, stream_options options);

  void memory_released() noexcept override;

 private:
  struct pending_tensor {
    host_block memory;        ///< Of the arena; or
    charged_block elsewhere;  ///< of an allocator.
    std::byte* data = nullptr;
    std::atomic<std::uint64_t> missing{
        0};                 ///< Bytes. The last to arrive is told by the decrement that reaches 0.
    bool complete = false;  ///< In order of request: waits for those before it.
  };
  class sink;
  class staged_sink;
  class abandon_on_exit;
  struct slot;

  static async_generator<tensor> deliver(std::shared_ptr<slot> stream);
  static task<void> close(std::shared_ptr<slot> stream);

  void start();
  static task<void> run(std::shared_ptr<fetch> self, detail::loop_services* loop);
  task<void> begin(detail::loop_services* loop);
  task<void> work(detail::loop_services& loop, unsigned number);
  task<void> keep_failures(task<void> working);
  task<void> place();
  task<result<std::vector<device_block>>> allocate(std::span<const std::uint32_t> batch);
  task<void> stage_known(std::vector<std::uint32_t> batch);
  task<void> land(unsigned loop, staging_slot slot, std::vector<detail::segment> parts);
  task<void> warm_memory(detail::loop_services& loop);
  [[nodiscard]] std::size_t needed_next() const noexcept;
  [[nodiscard]] bool is_large(std::uint64_t size) const noexcept;
  task<void> finished();
  /// Not before the end: whoever has waited for that finds the memory given back.
  void free_memory() noexcept;
  void abandon() noexcept;
  void fail(error reason) noexcept;
  /// With the exception that is being handled.
  void fail_with_exception() noexcept;

  /// Whether this process is a fork of the one in which the stream began: its loops and workers do
  /// not exist here.
  [[nodiscard]] bool left_behind() const noexcept { return runtime_->generation() != generation_; }

  /// Whether bodies are received into staging slots and copied on.
  [[nodiscard]] bool staged() const noexcept {
    return destinations_ != nullptr && destinations_->staged();
  }
  /// The most bytes of a range that a slot holds.
  [[nodiscard]] std::uint64_t slot_room() const noexcept {
    return destinations_->staging().slot_size;
  }

  // With the mutex held.
  [[nodiscard]] bool exhausted() const noexcept {
    return next_ == order_.size() && !placing_ && ranges_.empty();
  }
  void admit(async_condition::wake_list& woken);
  [[nodiscard]] std::vector<std::uint32_t> choose(async_condition::wake_list& woken);
  [[nodiscard]] bool own_memory(std::uint32_t number, async_condition::wake_list& woken);
  void queue(std::span<const std::uint32_t> batch, async_condition::wake_list& woken);
  [[nodiscard]] bool admissible(std::uint64_t size, bool first);
  [[nodiscard]] std::size_t reserved() const noexcept;
  [[nodiscard]] std::uint64_t prefill(std::uint32_t number);
  void hand_over(std::uint32_t number);
  void spawn_workers(unsigned wanted);
  void drop_speculative();
  [[nodiscard]] std::uint64_t longest_range() const noexcept;
  [[nodiscard]] detail::planned_range take_range();
  [[nodiscard]] bool starved() const noexcept;

  [[nodiscard]] bool landed(std::uint32_t number, std::uint64_t size) noexcept;
  void completed(std::span<const std::uint32_t> numbers);
  void arrived(std::uint64_t bytes);
  void range_done(std::uint64_t bytes);
  void report(bool last);
  [[nodiscard]] tensor make_tensor(std::uint32_t number);

  const std::shared_ptr<const detail::model_state> model_;
  const std::shared_ptr<detail::runtime_state> runtime_;
  const detail::stream_plan plan_;
  const stream_options options_;
  transfer terms_;
  std::uint64_t generation_ = runtime_->generation();  ///< Of the runtime, when the stream began.
  const bool local_;               ///< Read from this machine's files: no connection to keep busy.
  std::uint64_t large_bytes_ = 0;  ///< Of the tensors that go last.
  std::vector<std::uint32_t> order_;  ///< Of admission: indices into the plan.
  std::shared_ptr<host_arena> arena_;
  std::vector<pending_tensor> pending_;  ///< By place in the plan.
  const bool placed_;                    ///< Memory comes from an allocator, not from the arena.
  std::unique_ptr<detail::destinations> destinations_;  ///< Then; while the stream runs.
  struct copy_track {
    std::uint32_t number = 0;
    std::int64_t landed = 0;  ///< When the last copy had.
  };
  std::vector<copy_track> copy_tracks_;  ///< Of the trace, by loop; each its loop's own.
  async_scope workers_;

  std::mutex mutex_;
  // Admission.
  std::size_t next_ = 0;  ///< In `order_`.
  std::uint64_t left_to_admit_ = 0;
  std::optional<detail::speculative_bytes> speculative_;
  std::vector<std::uint64_t> known_;  ///< By file: the size of its speculative bytes.
  std::atomic<std::thread::id>
      dropping_{};  ///< Who is inside `drop_speculative`; compared with oneself alone.
  // Ranges.
  std::deque<detail::planned_range> ranges_;
  std::uint64_t queued_bytes_ = 0;
  async_condition work_;
  detail::concurrency_control concurrency_;
  unsigned spawned_ = 0;
  unsigned working_ = 0;
  async_condition admitted_;  ///< Notified after each batch.
  // Placing: admission that has to wait for the allocator, by a coroutine of its own.
  async_condition admission_;
  bool admission_due_ = false;
  bool placing_ = false;  ///< A batch has been taken out of `order_` and has no ranges yet.
  // Hand-over.
  std::vector<std::uint32_t> ready_;
  std::size_t next_in_order_ = 0;  ///< In the plan; delivery::requested.
  async_condition deliverable_;
  std::optional<error> failure_;
  bool started_ = false;
  bool stopping_ = false;
  bool finished_ = false;

  // Progress: relaxed counters, each right for itself.
  std::atomic<std::uint64_t> bytes_arrived_{0};
  std::atomic<std::uint64_t> tensors_complete_{0};
  std::atomic<std::int64_t> next_report_{0};
  std::mutex reporting_;
};

}  // namespace headrace
