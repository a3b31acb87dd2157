#include "device/cuda_context.hpp"

#include <headrace/coro/environment.hpp>
#include <headrace/device/copy_engine.hpp>
#include <headrace/device/cuda_device.hpp>
#include <headrace/io/io_context.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <coroutine>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

namespace headrace {
namespace detail {
namespace {

using namespace std::chrono_literals;

// How often the driver is asked whether copies that are out have failed.
constexpr auto watch_interval = 100ms;
// How long copies may have landed without a word from the driver: a host function of somebody
// else's may hold up ours.
constexpr auto word_patience = 1s;

class cuda_copy_engine;
class landing;

/// Copies that are told of together: those that were queued in one turn of the loop.
///
/// The loop's own, but for `told` and `next`. From `cuLaunchHostFunc` until the driver's call it is
/// the driver's as well.
struct copy_batch {
  enum class word : unsigned char {
    none,     ///< The host function has not been called, and may yet be.
    given,    ///< It has been: the batch is on its way to the loop.
    unwanted  ///< The loop has ended the batch without it.
  };

  explicit copy_batch(cuda_copy_engine& of) noexcept : engine(of) {}
  copy_batch(const copy_batch&) = delete;
  copy_batch& operator=(const copy_batch&) = delete;

  /// False where the driver's word has come first.
  [[nodiscard]] bool give_up() noexcept {
    auto expected = word::none;
    return told.compare_exchange_strong(expected, word::unwanted, std::memory_order_relaxed);
  }

  cuda_copy_engine& engine;  ///< Not to be followed once `told` is `unwanted`.
  std::atomic<word> told{word::none};
  copy_batch* next = nullptr;  ///< Among those that have landed.

  bool announced = false;       ///< Whether the host function has been launched.
  CUevent landed = nullptr;     ///< On the copy stream, behind the copies; null: not to be had.
  std::optional<error> failed;  ///< Why it will have failed once it has ended.
  std::optional<steady_time> landed_since;  ///< When it was first seen to have landed.
  landing* first = nullptr;
  landing** last = &first;

  // The two ways out of a batch that is unwanted; see below.
  bool kept = false;
  bool called = false;
  copy_batch* previous_kept = nullptr;
  copy_batch* next_kept = nullptr;
};

/// Batches that the loop has ended without the driver's word. Once that comes as well they are
/// deleted; where a context has died it never does, and they stay here.
class unwanted_batches {
 public:
  /// The loop has done with it.
  static void keep(copy_batch& batch) noexcept {
    auto& all = instance();
    const std::lock_guard lock(all.mutex_);
    if (batch.called) {
      delete &batch;
      return;
    }
    batch.kept = true;
    batch.next_kept = all.first_;
    if (all.first_ != nullptr) all.first_->previous_kept = &batch;
    all.first_ = &batch;
  }

  /// The driver has done with it.
  static void drop(copy_batch& batch) noexcept {
    auto& all = instance();
    const std::lock_guard lock(all.mutex_);
    batch.called = true;
    if (!batch.kept) return;
    (batch.previous_kept != nullptr ? batch.previous_kept->next_kept : all.first_) =
        batch.next_kept;
    if (batch.next_kept != nullptr) batch.next_kept->previous_kept = batch.previous_kept;
    delete &batch;
  }

 private:
  // Never destroyed: the driver's threads may outlive static objects.
  static unwanted_batches& instance() {
    static auto* const only = new unwanted_batches;
    return *only;
  }

  std::mutex mutex_;
  copy_batch* first_ = nullptr;
};

/// Suspends until a batch has ended.
class landing {
 public:
  landing(copy_batch& batch, io_context& loop) noexcept : batch_(batch), executor_(&loop) {}
  landing(const landing&) = delete;
  landing& operator=(const landing&) = delete;

  [[nodiscard]] bool await_ready() const noexcept { return false; }
  template <class Promise>
  void await_suspend(std::coroutine_handle<Promise> handle) {
    executor* const given = environment_of(handle).executor;
    if (given != nullptr) executor_ = given;
    coroutine_ = handle;
    *batch_.last = this;
    batch_.last = &next_;
  }
  [[nodiscard]] std::optional<error> await_resume() noexcept { return std::move(failed_); }

  /// Resumes the coroutines of the list that begins with `first`, in its order, and none of them
  /// before this returns.
  static void resume_all(landing* first, const std::optional<error>& failed) noexcept {
    while (first != nullptr) {
      landing& one = *first;
      first = one.next_;
      one.failed_ = failed;
      one.resume_.resume_on(one.executor_, one.coroutine_);
    }
  }

 private:
  copy_batch& batch_;
  executor* executor_;
  std::coroutine_handle<> coroutine_;
  resume_item resume_;
  landing* next_ = nullptr;
  std::optional<error> failed_;
};

class cuda_copy_engine final : public copy_engine {
 public:
  cuda_copy_engine(io_context& loop, std::shared_ptr<cuda_device> target) noexcept
      : loop_(loop), target_(std::move(target)), context_(target_->context()) {}

  ~cuda_copy_engine() override;

  [[nodiscard]] result<void> open();

  task<result<void>> copy(std::span<const copy_piece> pieces) override;
  result<void> follow(cuda_stream stream) override;
  copy_statistics statistics() const noexcept override;

 private:
  struct close_item final : work_item {
    explicit close_item(cuda_copy_engine& owner) noexcept : work_item(&run_close), engine(owner) {}
    static void run_close(work_item& item) noexcept {
      static_cast<close_item&>(item).engine.close();
    }
    cuda_copy_engine& engine;
  };
  struct landed_item final : work_item {
    explicit landed_item(cuda_copy_engine& owner) noexcept
        : work_item(&run_landed), engine(owner) {}
    static void run_landed(work_item& item) noexcept {
      static_cast<landed_item&>(item).engine.take_landed();
    }
    cuda_copy_engine& engine;
  };
  struct watch_timer final : timer_item {
    explicit watch_timer(cuda_copy_engine& owner) noexcept : timer_item(&fire), engine(owner) {}
    static void fire(timer_item& item) noexcept { static_cast<watch_timer&>(item).engine.watch(); }
    cuda_copy_engine& engine;
  };

  [[nodiscard]] std::optional<error> queue(std::span<const copy_piece> pieces, copy_batch*& into);
  [[nodiscard]] copy_batch& gather();
  void close() noexcept;
  [[nodiscard]] CUresult announce(copy_batch& batch) noexcept;
  void take_landed() noexcept;
  void watch() noexcept;
  [[nodiscard]] bool ended(copy_batch& batch, CUresult usable) noexcept;
  void finish(copy_batch& batch) noexcept;
  static void CUDA_CB say_landed(void* batch) noexcept;

  io_context& loop_;
  const std::shared_ptr<cuda_device> target_;
  cuda_context& context_;
  CUstream copies_ = nullptr;   ///< Where they are queued.
  CUstream signals_ = nullptr;  ///< Where the host functions are: each holds up what is behind it.

  copy_batch* gathering_ = nullptr;  ///< What is queued in this turn of the loop.
  std::vector<copy_batch*> out_;     ///< Closed and not ended, in their order.
  std::vector<copy_batch*> spare_;
  std::vector<CUevent> spare_events_;
  std::size_t batches_made_ = 0;
  close_item close_{*this};
  watch_timer watch_{*this};

  std::atomic<copy_batch*> landed_{nullptr};  ///< Told of by the driver's threads; newest first.
  landed_item landed_posted_{*this};

  std::mutex follow_mutex_;
  CUevent follow_ = nullptr;

  std::atomic<std::uint64_t> pieces_{0};
  std::atomic<std::uint64_t> bytes_{0};
  std::atomic<std::uint64_t> batches_{0};
  std::atomic<std::uint64_t> wake_ups_{0};
};

constexpr const char* doing = "copy to";

cuda_copy_engine::~cuda_copy_engine() {
  loop_.cancel_timer(watch_);
  for (const copy_batch* const batch : spare_) delete batch;
  if (cuda_driver::forked()) return;
  HEADRACE_ASSERT(gathering_ == nullptr && out_.empty());
  const auto& driver = context_.driver();
  const context_scope here(context_);
  // Errors are those of a context that is dead: there is nothing left to give back then.
  if (here.state() != CUDA_SUCCESS) return;
  for (const CUevent event : spare_events_) static_cast<void>(driver.cuEventDestroy(event));
  if (follow_ != nullptr) static_cast<void>(driver.cuEventDestroy(follow_));
  if (signals_ != nullptr) static_cast<void>(driver.cuStreamDestroy(signals_));
  if (copies_ != nullptr) static_cast<void>(driver.cuStreamDestroy(copies_));
}

result<void> cuda_copy_engine::open() {
  const auto& driver = context_.driver();
  const context_scope here(context_);
  CUresult code = here.state();
  if (code == CUDA_SUCCESS) code = driver.cuStreamCreate(&copies_, CU_STREAM_NON_BLOCKING);
  if (code == CUDA_SUCCESS) code = driver.cuStreamCreate(&signals_, CU_STREAM_NON_BLOCKING);
  if (code == CUDA_SUCCESS) code = driver.cuEventCreate(&follow_, CU_EVENT_DISABLE_TIMING);
  if (code != CUDA_SUCCESS) return failure{context_.failure(code, "make streams on")};
  return {};
}

task<result<void>> cuda_copy_engine::copy(std::span<const copy_piece> pieces) {
  HEADRACE_ASSERT(loop_.on_this_thread());
  copy_batch* batch = nullptr;
  std::optional<error> failed = queue(pieces, batch);
  // What could not be queued ends with what was queued before it: that is still the driver's.
  if (batch != nullptr) {
    landing wait(*batch, loop_);
    auto failed_later = co_await wait;
    if (!failed) failed = std::move(failed_later);
  }
  if (failed) co_return failure{*failed};
  co_return result<void>();
}

std::optional<error> cuda_copy_engine::queue(std::span<const copy_piece> pieces,
                                             copy_batch*& into) {
  const auto& driver = context_.driver();
  const context_scope here(context_);
  if (here.state() != CUDA_SUCCESS) return context_.failure(here.state(), doing);
  std::uint64_t bytes = 0;
  std::uint64_t queued = 0;
  CUresult code = CUDA_SUCCESS;
  for (const copy_piece& piece : pieces) {
    if (piece.size == 0) continue;
    into = &gather();
    code = driver.cuMemcpyHtoDAsync(reinterpret_cast<CUdeviceptr>(piece.to), piece.from, piece.size,
                                    copies_);
    if (code != CUDA_SUCCESS) break;
    bytes += piece.size;
    ++queued;
  }
  // Relaxed: counters, each right by itself.
  pieces_.fetch_add(queued, std::memory_order_relaxed);
  bytes_.fetch_add(bytes, std::memory_order_relaxed);
  if (code != CUDA_SUCCESS) return context_.failure(code, doing);
  return std::nullopt;
}

copy_batch& cuda_copy_engine::gather() {
  if (gathering_ != nullptr) return *gathering_;
  if (spare_.empty()) {
    // Room for every batch that there is: what ends one must not fail.
    out_.reserve(batches_made_ + 1);
    spare_.reserve(batches_made_ + 1);
    spare_events_.reserve(batches_made_ + 1);
    gathering_ = new copy_batch(*this);
    ++batches_made_;
  } else {
    gathering_ = spare_.back();
    spare_.pop_back();
  }
  loop_.post(close_);
  return *gathering_;
}

void cuda_copy_engine::close() noexcept {
  copy_batch& batch = *std::exchange(gathering_, nullptr);
  batches_.fetch_add(1, std::memory_order_relaxed);
  out_.push_back(&batch);
  const CUresult code = announce(batch);
  if (code != CUDA_SUCCESS) {
    batch.failed = context_.failure(code, doing);
    watch();
  } else if (!watch_.pending()) {
    loop_.start_timer(watch_, loop_.now() + watch_interval);
  }
}

CUresult cuda_copy_engine::announce(copy_batch& batch) noexcept {
  const auto& driver = context_.driver();
  const context_scope here(context_);
  CUresult code = here.state();
  if (code != CUDA_SUCCESS) return code;
  CUevent event = nullptr;
  if (spare_events_.empty()) {
    code = driver.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
    if (code != CUDA_SUCCESS) return code;
  } else {
    event = spare_events_.back();
    spare_events_.pop_back();
  }
  code = driver.cuEventRecord(event, copies_);
  if (code != CUDA_SUCCESS) {
    spare_events_.push_back(event);
    return code;
  }
  batch.landed = event;
  code = driver.cuStreamWaitEvent(signals_, event, 0);
  if (code != CUDA_SUCCESS) return code;
  code = driver.cuLaunchHostFunc(signals_, &say_landed, &batch);
  batch.announced = code == CUDA_SUCCESS;
  return code;
}

// On a thread of the driver's, which must not be kept and must not call the driver.
void cuda_copy_engine::say_landed(void* data) noexcept {
  auto* const batch = static_cast<copy_batch*>(data);
  auto expected = copy_batch::word::none;
  // Relaxed: the list below orders what follows, or the mutex of the unwanted ones.
  if (!batch->told.compare_exchange_strong(expected, copy_batch::word::given,
                                           std::memory_order_relaxed)) {
    unwanted_batches::drop(*batch);
    return;
  }
  // The engine is there: it waits for a batch whose word has been given.
  cuda_copy_engine& engine = batch->engine;
  copy_batch* newest = engine.landed_.load(std::memory_order_relaxed);
  do {
    batch->next = newest;
    // Release: the loop sees the batch, and what the driver has read and written. Acquire: the loop
    // has taken its item out of its queue before it emptied ours.
  } while (!engine.landed_.compare_exchange_weak(newest, batch, std::memory_order_acq_rel,
                                                 std::memory_order_relaxed));
  // Whoever makes the list non-empty wakes the loop; for everybody else the engine may be gone now.
  if (newest == nullptr) engine.loop_.post(engine.landed_posted_);
}

void cuda_copy_engine::take_landed() noexcept {
  wake_ups_.fetch_add(1, std::memory_order_relaxed);
  copy_batch* newest = landed_.exchange(nullptr, std::memory_order_acq_rel);
  copy_batch* oldest = nullptr;
  while (newest != nullptr) {
    copy_batch* const older = newest->next;
    newest->next = oldest;
    oldest = newest;
    newest = older;
  }
  while (oldest != nullptr) {
    copy_batch& batch = *oldest;
    oldest = batch.next;
    finish(batch);
  }
}

void cuda_copy_engine::watch() noexcept {
  if (out_.empty()) return;
  const steady_time now = loop_.now();
  {
    const context_scope here(context_);
    for (std::size_t at = 0; at < out_.size();) {
      copy_batch& batch = *out_[at];
      // Those behind it are not done either.
      if (!ended(batch, here.state())) break;
      if (!batch.landed_since) batch.landed_since = now;
      const bool late = batch.failed || now - *batch.landed_since >= word_patience;
      if (late && (!batch.announced || batch.give_up())) {
        finish(batch);
      } else {
        ++at;
      }
    }
  }
  if (!out_.empty() && !watch_.pending()) loop_.start_timer(watch_, now + watch_interval);
}

/// Whether the driver has done with the copies of `batch`: they have landed, or nothing runs in the
/// context any more. `usable`: whether the context could be entered.
bool cuda_copy_engine::ended(copy_batch& batch, CUresult usable) noexcept {
  const auto& driver = context_.driver();
  CUresult code = usable;
  if (code == CUDA_SUCCESS && batch.landed != nullptr) code = driver.cuEventQuery(batch.landed);
  if (batch.landed != nullptr && (code == CUDA_SUCCESS || code == CUDA_ERROR_NOT_READY))
    return code == CUDA_SUCCESS;
  if (code != CUDA_SUCCESS && !batch.failed) batch.failed = context_.failure(code, doing);
  // Without an event it has ended when the whole stream has, or when that cannot be asked either.
  if (usable == CUDA_SUCCESS) code = driver.cuStreamQuery(copies_);
  return code != CUDA_ERROR_NOT_READY;
}

/// Ends a batch that is out: resumes whom it concerns, and keeps what can be used again.
void cuda_copy_engine::finish(copy_batch& batch) noexcept {
  out_.erase(std::find(out_.begin(), out_.end(), &batch));
  landing* const first = std::exchange(batch.first, nullptr);
  const std::optional<error> failed = std::exchange(batch.failed, std::nullopt);
  batch.last = &batch.first;
  batch.landed_since.reset();
  if (batch.landed != nullptr) spare_events_.push_back(std::exchange(batch.landed, nullptr));
  if (batch.told.load(std::memory_order_relaxed) == copy_batch::word::unwanted) {
    --batches_made_;
    unwanted_batches::keep(batch);
  } else {
    batch.announced = false;
    batch.told.store(copy_batch::word::none, std::memory_order_relaxed);
    spare_.push_back(&batch);
  }
  landing::resume_all(first, failed);
}

result<void> cuda_copy_engine::follow(cuda_stream stream) {
  constexpr const char* following = "wait for the stream of an allocator on";
  const auto& driver = context_.driver();
  const context_scope here(context_);
  if (here.state() != CUDA_SUCCESS) return failure{context_.failure(here.state(), following)};
  auto ordered = context_.check_order(stream);
  if (!ordered) return ordered;
  // One event does for all: a wait is for what was recorded last when it was queued.
  const std::lock_guard lock(follow_mutex_);
  CUresult code = driver.cuEventRecord(follow_, stream);
  if (code == CUDA_SUCCESS) code = driver.cuStreamWaitEvent(copies_, follow_, 0);
  if (code != CUDA_SUCCESS) return failure{context_.failure(code, following)};
  return {};
}

copy_statistics cuda_copy_engine::statistics() const noexcept {
  return {.pieces = pieces_.load(std::memory_order_relaxed),
          .bytes = bytes_.load(std::memory_order_relaxed),
          .batches = batches_.load(std::memory_order_relaxed),
          .wake_ups = wake_ups_.load(std::memory_order_relaxed)};
}

}  // namespace
}  // namespace detail

result<std::unique_ptr<copy_engine>> make_cuda_copy_engine(io_context& loop,
                                                           std::shared_ptr<cuda_device> target) {
  HEADRACE_ASSERT(loop.on_this_thread());
  auto made = std::make_unique<detail::cuda_copy_engine>(loop, std::move(target));
  auto opened = made->open();
  if (!opened) return failure{opened.error()};
  return std::unique_ptr<copy_engine>(std::move(made));
}

}  // namespace headrace
