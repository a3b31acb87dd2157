#include "stream/fetch.hpp"

#include <headrace/coro/with.hpp>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <iterator>

namespace headrace {
namespace {

/// All connections together have at most this much under way; also half of the stream's limit.
constexpr std::uint64_t in_flight_limit = 256_MiB;
constexpr std::uint64_t shortest_range = 1_MiB;
constexpr std::uint64_t shortest_share = 2_MiB;

/// Memory is warmed in steps of this: short enough that no connection waits for it.
constexpr std::size_t warming_step = 2_MiB;

/// Local reads under way: enough for the kernel's workers to copy on several cores, few enough to
/// stay in warm memory.
constexpr unsigned local_concurrency = 4;
constexpr std::uint64_t local_range = 4_MiB;

constexpr std::chrono::milliseconds report_interval{100};

}  // namespace

/// What a generator and its closing share: the fetch, once the first `next()` has made it.
struct fetch::slot {
  std::shared_ptr<const detail::model_state> model;
  stream_options options;
  std::shared_ptr<fetch> running;
};

/// Ends a fetch when the body of its generator goes, however that comes.
class fetch::abandon_on_exit {
 public:
  explicit abandon_on_exit(fetch& abandoned) noexcept : fetch_(abandoned) {}
  abandon_on_exit(const abandon_on_exit&) = delete;
  abandon_on_exit& operator=(const abandon_on_exit&) = delete;
  ~abandon_on_exit() { fetch_.abandon(); }

 private:
  fetch& fetch_;
};

/// Leads the bytes of a range to the tensors that they belong to.
class fetch::sink final : public range_sink {
 public:
  sink(fetch& owner, std::span<std::byte> gap) noexcept : owner_(owner), gap_(gap) {}

  void begin(const detail::planned_range& range) noexcept {
    segments_ = range.segments;
    at_ = 0;
    done_ = 0;
  }

  [[nodiscard]] buffer_sequence prepare(std::uint64_t most) override {
    buffers_.clear();
    std::uint64_t done = done_;
    for (std::size_t at = at_; at < segments_.size() && most > 0 && buffers_.size() < max_buffers;
         ++at) {
      const detail::segment& part = segments_[at];
      std::uint64_t size = std::min(part.size - done, most);
      std::byte* into = gap_.data();
      if (part.tensor != detail::segment::gap) {
        into = owner_.pending_[part.tensor].memory.data() + part.offset + done;
      } else {
        size = std::min<std::uint64_t>(size, gap_.size());
      }
      buffers_.push_back({into, static_cast<std::size_t>(size)});
      most -= size;
      // A gap that is longer than its buffer ends what can be described at once.
      if (size < part.size - done) break;
      done = 0;
    }
    return buffers_;
  }

  void commit(std::size_t size) override {
    owner_.arrived(size);
    finished_.clear();
    while (size > 0) {
      const detail::segment& part = segments_[at_];
      const auto here = static_cast<std::size_t>(std::min<std::uint64_t>(part.size - done_, size));
      size -= here;
      done_ += here;
      if (done_ < part.size) break;
      done_ = 0;
      ++at_;
      if (part.tensor == detail::segment::gap) continue;
      // Acquire and release: whoever brings the last byte has seen every other worker's bytes.
      const auto before =
          owner_.pending_[part.tensor].missing.fetch_sub(part.size, std::memory_order_acq_rel);
      if (before == part.size) finished_.push_back(part.tensor);
    }
    if (!finished_.empty()) owner_.completed(finished_);
  }

 private:
  fetch& owner_;
  std::span<std::byte> gap_;
  std::span<const detail::segment> segments_;
  std::size_t at_ = 0;          ///< The segment that the next byte belongs to,
  std::uint64_t done_ = 0;      ///< and how much of it has arrived.
  std::vector<iovec> buffers_;  ///< Kept for its capacity, as is the next one.
  std::vector<std::uint32_t> finished_;
};

fetch::fetch(std::shared_ptr<const detail::model_state> model, detail::stream_plan plan,
             stream_options options)
    : model_(std::move(model)),
      runtime_(model_->runtime),
      plan_(std::move(plan)),
      options_(std::move(options)),
      local_(!model_->sources.empty() && model_->sources.front()->local()),
      pending_(plan_.tensors.size()),
      concurrency_(std::max(1u, local_
                                    ? std::min(model_->options.max_concurrency, local_concurrency)
                                    : model_->options.max_concurrency)) {
  order_.reserve(plan_.tensors.size());
  for (std::uint32_t number = 0; number < plan_.tensors.size(); ++number) order_.push_back(number);
  left_to_admit_ = plan_.total_bytes;
  for (const auto& planned : plan_.tensors) {
    if (is_large(planned.size)) large_bytes_ += planned.size;
  }
}

fetch::~fetch() { free_memory(); }

void fetch::free_memory() noexcept {
  if (arena_ == nullptr || left_behind()) return;
  arena_->close();
  pending_.clear();
}

async_generator<tensor> fetch::stream(std::shared_ptr<const detail::model_state> model,
                                      stream_options options) {
  auto stream = std::make_shared<slot>(slot{std::move(model), std::move(options), nullptr});
  auto tensors = deliver(stream);
  tensors.at_close(close(std::move(stream)));
  return tensors;
}

task<void> fetch::close(std::shared_ptr<slot> stream) {
  if (stream->running == nullptr) co_return;
  stream->running->abandon();
  const environment given = co_await current_environment();
  stream->running->runtime_->check_waiter(given.executor);
  co_await stream->running->finished();
  stream->running->free_memory();
  stream->running.reset();
}

async_generator<tensor> fetch::deliver(std::shared_ptr<slot> stream) {
  const environment given = co_await current_environment();
  stream->model->runtime->check_waiter(given.executor);
  const std::size_t chunk = stream->model->options.chunk_size;
  if (stream->options.memory_limit < chunk) {
    throw error(errc::invalid_request, "a memory limit of " +
                                           format_size(stream->options.memory_limit) +
                                           " does not hold one chunk of " + format_size(chunk) +
                                           ": raise the memory limit or lower the chunk size");
  }
  if (stream->options.device.kind != device::type::cpu) {
    throw error(errc::unsupported, "this build cannot stream to " +
                                       stream->options.device.to_string() +
                                       ": it has no CUDA support");
  }
  auto plan =
      detail::make_plan(stream->model->contents, stream->options.tensors, stream->options.order);
  if (!plan) throw error(plan.error().with({.uri = stream->model->store->location()}));
  const auto self =
      std::make_shared<fetch>(stream->model, std::move(*plan), std::move(stream->options));
  stream->running = self;
  const abandon_on_exit guard(*self);
  self->start();

  std::vector<std::uint32_t> batch;
  for (;;) {
    if (self->left_behind())
      throw error(errc::cancelled,
                  "the stream began before this process was forked: begin another one");
    bool stopped = false;
    batch.clear();
    {
      std::unique_lock lock(self->mutex_);
      while (self->ready_.empty() && !self->finished_ && !self->failure_) {
        const bool notified = co_await self->deliverable_.wait(lock);
        if (!notified) {
          stopped = true;
          break;
        }
      }
      if (!stopped && !self->failure_) batch.swap(self->ready_);
    }
    for (const std::uint32_t number : batch) {
      const bool stop = co_await stop_requested();
      if (stop) {
        stopped = true;
        break;
      }
      tensor delivered = self->make_tensor(number);
      delivered.exposed_ = true;
      co_yield delivered;
      if (self->left_behind()) break;
      // Dropped here, before anything is waited for, unless the consumer has moved it out.
    }
    if (!stopped && !batch.empty()) continue;

    // The end, a failure, or a stop: in any case nothing is left running when the consumer hears of
    // it.
    self->abandon();
    co_await self->finished();
    self->free_memory();
    stream->running.reset();
    std::optional<error> failed;
    {
      const std::lock_guard lock(self->mutex_);
      failed = self->failure_;
    }
    if (failed) throw error(*failed);
    if (stopped)
      throw error(errc::cancelled, "the stream was stopped",
                  {.uri = self->model_->store->location()});
    co_return;
  }
}

tensor fetch::make_tensor(std::uint32_t number) {
  const detail::planned_tensor& planned = plan_.tensors[number];
  std::shared_ptr<const tensor_info> info(model_, &model_->contents.tensors[planned.tensor]);
  return {std::move(info), planned.shape, std::move(pending_[number].memory)};
}

bool fetch::is_large(std::uint64_t size) const noexcept { return size > options_.memory_limit / 4; }

void fetch::start() {
  runtime_->start();
  generation_ = runtime_->generation();
  arena_ = runtime_->memory().open(options_.memory_limit, weak_from_this(),
                                   static_cast<std::size_t>(plan_.largest_tensor));
  speculative_ = model_->take_speculative();
  known_.assign(model_->sources.size(), 0);
  if (speculative_) {
    // More than a part of the limit would choke the stream that they are to help.
    if (speculative_->total() > options_.memory_limit / 4) {
      speculative_.reset();
    } else {
      for (std::size_t file = 0; file < known_.size(); ++file)
        known_[file] = speculative_->of_file[file].size();
      arena_->charge(speculative_->total());
    }
  }
  if (options_.order == delivery::completion) {
    // What is there already goes first: the consumer has something to do while the first ranges are
    // under way. What takes a large part of the limit goes last: by then there is warm memory for
    // it, and nobody has to wait behind it.
    const auto turn = [this](std::uint32_t number) {
      const auto& planned = plan_.tensors[number];
      if (planned.runs.empty() || planned.runs.back().end() <= known_[planned.file]) return 0;
      return is_large(planned.size) ? 2 : 1;
    };
    std::vector<std::uint32_t> sorted;
    sorted.reserve(order_.size());
    for (const int now : {0, 1, 2}) {
      std::ranges::copy_if(order_, std::back_inserter(sorted),
                           [&](std::uint32_t number) { return turn(number) == now; });
    }
    order_ = std::move(sorted);
  }
  terms_ = model_->terms_from(real_clock().now());
  runtime_->spawn([this](detail::loop_services&) { return run(shared_from_this()); });
  started_ = true;
}

task<void> fetch::run(std::shared_ptr<fetch> self) {
  const environment given = co_await current_environment();
  timer_service& timers = *given.executor->timers();
  std::stop_source late;
  {
    const std::stop_callback outer(given.stop, [&self] { self->abandon(); });
    const std::stop_callback passed(late.get_token(), [&self] { self->abandon(); });
    detail::deadline_timer timer(timers, late);
    if (self->terms_.limits.deadline) timers.start_timer(timer, *self->terms_.limits.deadline);
    // Nothing is thrown beyond here: the consumer waits for the end, and other streams share the
    // scope.
    try {
      async_condition::wake_list woken;
      const std::lock_guard lock(self->mutex_);
      self->admit(woken);
      self->spawn_workers(self->concurrency_.wanted());
      auto& loop = self->runtime_->loop(0);
      // Local files leave no time over: every core copies.
      if (!self->local_)
        self->workers_.spawn(loop.context(), self->keep_failures(self->warm_memory(loop)));
    } catch (...) {
      self->fail_with_exception();
    }
    try {
      co_await self->workers_.join();
    } catch (...) {
      self->fail_with_exception();
    }
    if (timer.fired()) {
      self->fail(error(errc::timeout,
                       "the stream was not finished within its deadline of " +
                           std::to_string(self->model_->options.deadline.count()) + " ms",
                       {.uri = self->model_->store->location()}));
    }
  }
  try {
    self->report(true);
  } catch (...) {
    self->fail_with_exception();
  }
  async_condition::wake_list woken;
  const std::lock_guard lock(self->mutex_);
  if (self->stopping_ && !self->failure_ && given.stop.stop_requested()) {
    self->failure_.emplace(errc::cancelled, "the runtime was destroyed during the stream");
  }
  if (!self->stopping_ && !self->failure_ &&
      self->tensors_complete_.load(std::memory_order_relaxed) != self->plan_.tensors.size()) {
    self->failure_.emplace(errc::internal, "the stream has ended without all of its tensors");
  }
  self->finished_ = true;
  self->deliverable_.notify_all(woken);
}

task<void> fetch::finished() {
  std::unique_lock lock(mutex_);
  while (started_ && !finished_ && !left_behind()) co_await deliverable_.wait_unstoppable(lock);
}

void fetch::abandon() noexcept {
  if (left_behind()) return;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  workers_.request_stop();
}

void fetch::fail(error reason) noexcept {
  async_condition::wake_list woken;
  {
    const std::lock_guard lock(mutex_);
    // What ends after a stop ends because of it.
    if (failure_ || (stopping_ && reason.kind() == errc::cancelled)) return;
    failure_.emplace(std::move(reason));
    stopping_ = true;
    deliverable_.notify_all(woken);
  }
  workers_.request_stop();
}

void fetch::fail_with_exception() noexcept {
  try {
    throw;
  } catch (const error& failed) {
    fail(failed);
  } catch (const std::bad_alloc&) {
    fail(error(errc::out_of_memory, "no memory was left to keep track of the stream"));
  } catch (const std::exception& failed) {
    fail(error(errc::internal, failed.what()));
  } catch (...) {
    fail(error(errc::internal, "an exception of an unknown type"));
  }
}

void fetch::memory_released() noexcept {
  if (left_behind()) return;
  // Called from within `drop_speculative`: the mutex is held, and admission goes on anyway.
  if (dropping_.load(std::memory_order_relaxed) == std::this_thread::get_id()) return;
  try {
    async_condition::wake_list woken;
    const std::lock_guard lock(mutex_);
    admit(woken);
  } catch (...) {
    fail_with_exception();
  }
}

std::uint64_t fetch::longest_range() const noexcept {
  const std::uint64_t together =
      std::min<std::uint64_t>(in_flight_limit, options_.memory_limit / 2);
  const std::uint64_t chunk = model_->options.chunk_size;
  if (local_) return std::min(chunk, local_range);
  return std::clamp(together / concurrency_.wanted(),
                    std::min<std::uint64_t>(shortest_range, chunk), chunk);
}

/// Whether the next tensor may be admitted. The first of a batch waits for room for a whole range:
/// a stream whose memory comes back a tensor at a time would otherwise ask for a tensor at a time.
/// Not where nothing is out that could come back.
bool fetch::admissible(std::uint64_t size, bool first) {
  const bool patient = first && arena_->usage().live > 0;
  const std::uint64_t wanted =
      patient ? std::max(size, std::min(longest_range(), left_to_admit_)) : size;
  if (arena_->fits(wanted)) return true;
  // Not within a batch: its tensors have their first bytes from there, and its ranges are cut
  // accordingly.
  if (first && speculative_ &&
      host_arena::footprint(size) + speculative_->total() > options_.memory_limit) {
    drop_speculative();
    if (arena_->fits(wanted)) return true;
  }
  arena_->notify_on_release();
  return arena_->fits(wanted);
}

void fetch::drop_speculative() {
  const auto total = speculative_->total();
  speculative_.reset();
  std::ranges::fill(known_, 0);
  // May give a notice that was asked for earlier, and that would wait for the mutex held here.
  dropping_.store(std::this_thread::get_id(), std::memory_order_relaxed);
  arena_->uncharge(total);
  dropping_.store(std::thread::id(), std::memory_order_relaxed);
}

void fetch::admit(async_condition::wake_list& woken) {
  const std::uint64_t longest = longest_range();
  if (stopping_ || queued_bytes_ >= longest) return;
  std::vector<std::uint32_t> batch;
  std::uint64_t batch_bytes = 0;
  while (next_ < order_.size() && queued_bytes_ + batch_bytes < 2 * longest) {
    const std::uint32_t number = order_[next_];
    const detail::planned_tensor& planned = plan_.tensors[number];
    if (planned.size > 0) {
      if (!admissible(planned.size, batch.empty())) break;
      auto memory = arena_->allocate(static_cast<std::size_t>(planned.size));
      if (!memory) {
        if (!failure_)
          failure_ = memory.error().with({.uri = model_->sources[planned.file]->uri()});
        stopping_ = true;
        deliverable_.notify_all(woken);
        work_.notify_all(woken);
        return;
      }
      // Stored first: a block must not be dropped here, whatever throws.
      pending_[number].memory = std::move(*memory);
      const std::uint64_t there = prefill(number, pending_[number].memory);
      pending_[number].missing.store(planned.size - there, std::memory_order_relaxed);
      left_to_admit_ -= planned.size;
      batch_bytes += planned.size - there;
      bytes_arrived_.fetch_add(there, std::memory_order_relaxed);
      if (there < planned.size) batch.push_back(number);
      if (there == planned.size) hand_over(number);
    } else {
      hand_over(number);
    }
    ++next_;
  }
  for (auto& range : detail::cut_ranges(plan_, batch, longest, known_)) {
    queued_bytes_ += range.bytes.size;
    ranges_.push_back(std::move(range));
    work_.notify_one(woken);
  }
  if (next_ == order_.size() && speculative_) drop_speculative();
  if (!ready_.empty()) deliverable_.notify_all(woken);
  if (exhausted()) work_.notify_all(woken);
  admitted_.notify_all(woken);
}

/// Copies what is there already; gives how many bytes that were.
std::uint64_t fetch::prefill(std::uint32_t number, host_block& memory) {
  const detail::planned_tensor& planned = plan_.tensors[number];
  if (!speculative_ || planned.runs.front().begin >= known_[planned.file]) return 0;
  std::uint64_t copied = 0;
  for (const auto& part : detail::known_parts(planned, known_[planned.file])) {
    std::memcpy(memory.data() + part.offset,
                speculative_->of_file[planned.file].data() + part.in_file,
                static_cast<std::size_t>(part.size));
    copied += part.size;
  }
  return copied;
}

/// A tensor is complete.
void fetch::hand_over(std::uint32_t number) {
  tensors_complete_.fetch_add(1, std::memory_order_relaxed);
  if (options_.order == delivery::completion) {
    ready_.push_back(number);
    return;
  }
  pending_[number].complete = true;
  while (next_in_order_ < pending_.size() && pending_[next_in_order_].complete) {
    ready_.push_back(static_cast<std::uint32_t>(next_in_order_++));
  }
}

void fetch::completed(std::span<const std::uint32_t> numbers) {
  async_condition::wake_list woken;
  const std::lock_guard lock(mutex_);
  for (const std::uint32_t number : numbers) hand_over(number);
  if (!ready_.empty()) deliverable_.notify_all(woken);
}

void fetch::spawn_workers(unsigned wanted) {
  while (working_ < wanted) {
    auto& loop = runtime_->loop(spawned_);
    workers_.spawn(loop.context(), keep_failures(work(loop, spawned_)));
    ++spawned_;
    ++working_;
  }
}

/// What a worker throws is kept before the scope stops the others: what they end with is not the
/// reason.
task<void> fetch::keep_failures(task<void> working) {
  try {
    co_await std::move(working);
  } catch (...) {
    fail_with_exception();
  }
}

/// The next range. When no more can be admitted for now (the end, or a tensor that fills the
/// limit), what is queued is shared out evenly, in ever smaller parts: otherwise most connections
/// would have nothing to do while the last one finishes its long range.
detail::planned_range fetch::take_range() {
  detail::planned_range range = std::move(ranges_.front());
  ranges_.pop_front();
  const std::uint64_t share =
      std::max<std::uint64_t>(queued_bytes_ / std::max(1u, working_), shortest_share);
  if (range.bytes.size > share && range.bytes.size - share >= shortest_share / 2 && starved()) {
    ranges_.push_front(detail::split_range(range, share));
  }
  queued_bytes_ -= range.bytes.size;
  return range;
}

/// Whether nothing more can be admitted for now.
bool fetch::starved() const noexcept {
  return next_ == order_.size() ||
         !arena_->fits(static_cast<std::size_t>(plan_.tensors[order_[next_]].size));
}

/// What the next admissions want to find warm: a few ranges, and by the end of the others the
/// largest of the large tensors. Grown evenly over the stream: all at once, it would take the
/// loop's time when that is shortest.
std::size_t fetch::needed_next() const noexcept {
  std::uint64_t needed = 2 * longest_range();
  if (is_large(plan_.largest_tensor)) {
    const auto others = static_cast<double>(plan_.total_bytes - large_bytes_);
    const auto arrived = static_cast<double>(bytes_arrived_.load(std::memory_order_relaxed));
    const double part = others > 0 ? std::min(1.0, arrived / others) : 1.0;
    needed = std::max(needed,
                      static_cast<std::uint64_t>(part * static_cast<double>(plan_.largest_tensor)));
  }
  return static_cast<std::size_t>(std::min(left_to_admit_, needed));
}

/// Touches fresh memory ahead of the workers while the loop would wait for the peer. The first
/// touch of a page costs more than receiving into it, and when it happens inside a receive,
/// everybody waits.
task<void> fetch::warm_memory(detail::loop_services& loop) {
  for (;;) {
    co_await idle(loop.context());
    std::size_t size = 0;
    {
      const std::lock_guard lock(mutex_);
      if (stopping_ || next_ == order_.size()) co_return;
      size = needed_next();
    }
    if (arena_->warm_ahead(size, warming_step) > 0) continue;
    // Nothing to do, or no room, until something has been admitted.
    std::unique_lock lock(mutex_);
    if (stopping_ || next_ == order_.size()) co_return;
    const bool notified = co_await admitted_.wait(lock);
    if (!notified) co_return;
  }
}

task<void> fetch::work(detail::loop_services& loop, unsigned number) {
  std::vector<std::byte> gap(detail::gap_limit);
  sink receiving(*this, gap);
  trace* const events = model_->options.trace.get();
  const std::uint32_t track =
      events != nullptr ? events->track("connection " + std::to_string(number)) : 0;

  for (;;) {
    detail::planned_range range;
    {
      async_condition::wake_list woken;
      std::unique_lock lock(mutex_);
      bool leave = false;
      while (!leave && ranges_.empty()) {
        leave = stopping_ || exhausted();
        if (leave) break;
        const bool notified = co_await work_.wait(lock);
        leave = !notified;
      }
      if (leave || stopping_ || working_ > concurrency_.wanted()) {
        --working_;
        // The notice that woke this one may have been meant for whoever goes on.
        if (!ranges_.empty()) work_.notify_one(woken);
        co_return;
      }
      range = take_range();
      admit(woken);
    }
    const std::int64_t began = events != nullptr ? events->now() : 0;
    receiving.begin(range);
    range_source& source = *model_->sources[range.file];
    auto read = co_await source.read(loop.storage(), terms_, range.bytes, receiving);
    if (events != nullptr) {
      events->span(track, "range", began,
                   "\"file\":" + json_quote(model_->contents.files[range.file].name) +
                       ",\"begin\":" + std::to_string(range.bytes.begin) +
                       ",\"bytes\":" + std::to_string(range.bytes.size));
    }
    if (!read) {
      fail(read.error());
      const std::lock_guard lock(mutex_);
      --working_;
      co_return;
    }
    range_done(range.bytes.size);
  }
}

void fetch::arrived(std::uint64_t bytes) {
  bytes_arrived_.fetch_add(bytes, std::memory_order_relaxed);
  if (options_.on_progress) report(false);
}

void fetch::range_done(std::uint64_t bytes) {
  const auto now = real_clock().now();
  const std::lock_guard lock(mutex_);
  if (concurrency_.arrived(bytes, now)) spawn_workers(concurrency_.wanted());
}

void fetch::report(bool last) {
  if (!options_.on_progress) return;
  const std::int64_t now = real_clock().now().time_since_epoch().count();
  if (!last && now < next_report_.load(std::memory_order_relaxed)) return;
  // One call at a time, so that the numbers never go back and the callback needs no lock of its
  // own.
  std::unique_lock lock(reporting_, std::defer_lock);
  if (last) {
    lock.lock();
  } else if (!lock.try_lock() || now < next_report_.load(std::memory_order_relaxed)) {
    return;
  }
  next_report_.store(now + std::chrono::nanoseconds(report_interval).count(),
                     std::memory_order_relaxed);
  options_.on_progress(
      {.bytes = std::min(bytes_arrived_.load(std::memory_order_relaxed), plan_.total_bytes),
       .total_bytes = plan_.total_bytes,
       .tensors = tensors_complete_.load(std::memory_order_relaxed),
       .total_tensors = plan_.tensors.size()});
}

}  // namespace headrace
