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
        into = owner_.pending_[part.tensor].data + part.offset + done;
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
      if (part.tensor != detail::segment::gap && owner_.landed(part.tensor, part.size))
        finished_.push_back(part.tensor);
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

/// Leads the bytes of a range, wanted or not, into a staging slot.
class fetch::staged_sink final : public range_sink {
 public:
  explicit staged_sink(fetch& owner) noexcept : owner_(owner) {}

  void begin(std::span<std::byte> into) noexcept {
    into_ = into;
    filled_ = 0;
  }

  [[nodiscard]] buffer_sequence prepare(std::uint64_t most) override {
    const auto rest = into_.subspan(filled_);
    next_ = {rest.data(), static_cast<std::size_t>(std::min<std::uint64_t>(most, rest.size()))};
    return {&next_, 1};
  }

  void commit(std::size_t size) override {
    owner_.arrived(size);
    filled_ += size;
  }

 private:
  fetch& owner_;
  std::span<std::byte> into_;
  std::size_t filled_ = 0;
  iovec next_{};
};

fetch::fetch(std::shared_ptr<const detail::model_state> model, detail::stream_plan plan,
             stream_options options)
    : model_(std::move(model)),
      runtime_(model_->runtime),
      plan_(std::move(plan)),
      options_(std::move(options)),
      local_(!model_->sources.empty() && model_->sources.front()->local()),
      pending_(plan_.tensors.size()),
      placed_(detail::destinations::needed(options_)),
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
  pending_tensor& held = pending_[number];
  if (placed_) {
    return {std::move(info), planned.shape, options_.device, std::move(held.elsewhere),
            static_cast<std::size_t>(planned.size)};
  }
  return {std::move(info), planned.shape, std::move(held.memory)};
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
    // it (of the arena), and nobody has to wait behind it.
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
  runtime_->spawn([this](detail::loop_services& loop) { return run(shared_from_this(), &loop); });
  started_ = true;
}

/// Has everything started that the stream consists of.
task<void> fetch::begin(detail::loop_services* loop) {
  if (placed_) {
    auto opened = co_await detail::destinations::open(runtime_, options_, loop);
    if (!opened) {
      fail(opened.error());
      co_return;
    }
    destinations_ = std::move(*opened);
  }
  trace* const events = model_->options.trace.get();
  if (events != nullptr && staged()) {
    for (unsigned number = 0; number < runtime_->threads(); ++number)
      copy_tracks_.push_back({events->track("copies " + std::to_string(number))});
  }
  auto& first = runtime_->loop(0);
  async_condition::wake_list woken;
  const std::lock_guard lock(mutex_);
  if (placed_) workers_.spawn(first.context(), keep_failures(place()));
  admit(woken);
  spawn_workers(concurrency_.wanted());
  // Local files leave no time over: every core copies.
  if (!local_ && !placed_) workers_.spawn(first.context(), keep_failures(warm_memory(first)));
}

task<void> fetch::run(std::shared_ptr<fetch> self, detail::loop_services* loop) {
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
      co_await self->begin(loop);
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
  self->destinations_.reset();
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
  std::uint64_t chunk = model_->options.chunk_size;
  if (staged()) chunk = std::min<std::uint64_t>(chunk, slot_room());
  if (local_) return std::min(chunk, local_range);
  return std::clamp(together / concurrency_.wanted(),
                    std::min<std::uint64_t>(shortest_range, chunk), chunk);
}

/// Whether the next tensor may be admitted. The first of a batch waits for room for a whole range:
/// a stream whose memory comes back a tensor at a time would otherwise ask for a tensor at a time.
/// Not where nothing is out that could come back.
bool fetch::admissible(std::uint64_t size, bool first) {
  const bool patient = first && reserved() > 0;
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

/// Bytes of tensors that are admitted and not yet the consumer's.
std::size_t fetch::reserved() const noexcept {
  const memory_usage used = arena_->usage();
  if (!placed_) return used.live;
  return used.extra - std::min<std::size_t>(used.extra, speculative_ ? speculative_->total() : 0);
}

void fetch::admit(async_condition::wake_list& woken) {
  if (placed_) {
    admission_due_ = true;
    admission_.notify_one(woken);
    if (exhausted()) work_.notify_all(woken);
    return;
  }
  if (stopping_ || queued_bytes_ >= longest_range()) return;
  const auto batch = choose(woken);
  if (!stopping_) queue(batch, woken);
}

/// Takes what may be admitted out of the order of admission, and gives what of it has bytes to
/// fetch. In the arena it has its memory then; an allocator's is to follow.
std::vector<std::uint32_t> fetch::choose(async_condition::wake_list& woken) {
  std::vector<std::uint32_t> batch;
  const std::uint64_t longest = longest_range();
  std::uint64_t batch_bytes = 0;
  while (next_ < order_.size() && queued_bytes_ + batch_bytes < 2 * longest) {
    const std::uint32_t number = order_[next_];
    const std::uint64_t size = plan_.tensors[number].size;
    if (size == 0) {
      hand_over(number);
    } else {
      if (!admissible(size, batch.empty())) break;
      std::uint64_t there = 0;
      if (placed_) {
        arena_->charge(host_arena::footprint(static_cast<std::size_t>(size)));
      } else {
        if (!own_memory(number, woken)) return {};
        there = prefill(number);
        bytes_arrived_.fetch_add(there, std::memory_order_relaxed);
      }
      pending_[number].missing.store(size - there, std::memory_order_relaxed);
      left_to_admit_ -= size;
      batch_bytes += size - there;
      if (there < size) batch.push_back(number);
      if (there == size) hand_over(number);
    }
    ++next_;
  }
  return batch;
}

/// Memory of the arena for a tensor; without it the stream fails.
bool fetch::own_memory(std::uint32_t number, async_condition::wake_list& woken) {
  const detail::planned_tensor& planned = plan_.tensors[number];
  auto memory = arena_->allocate(static_cast<std::size_t>(planned.size));
  if (!memory) {
    if (!failure_) failure_ = memory.error().with({.uri = model_->sources[planned.file]->uri()});
    stopping_ = true;
    deliverable_.notify_all(woken);
    work_.notify_all(woken);
    return false;
  }
  // Kept at once: a block must not be dropped here, whatever throws.
  pending_[number].memory = std::move(*memory);
  pending_[number].data = pending_[number].memory.data();
  return true;
}

/// Cuts what has its memory into ranges, and tells everybody what has changed.
void fetch::queue(std::span<const std::uint32_t> batch, async_condition::wake_list& woken) {
  for (auto& range : detail::cut_ranges(plan_, batch, longest_range(), known_)) {
    queued_bytes_ += range.bytes.size;
    ranges_.push_back(std::move(range));
    work_.notify_one(woken);
  }
  if (next_ == order_.size() && speculative_ && !staged()) drop_speculative();
  if (!ready_.empty()) deliverable_.notify_all(woken);
  if (exhausted()) work_.notify_all(woken);
  admitted_.notify_all(woken);
}

/// Admission where memory comes from an allocator, which has to be waited for.
task<void> fetch::place() {
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      while (!admission_due_ && !stopping_ && next_ < order_.size()) {
        const bool notified = co_await admission_.wait(lock);
        if (!notified) co_return;
      }
      if (stopping_) co_return;
      admission_due_ = false;
      // Whoever takes the next range says that there is room for more.
      if (next_ < order_.size() && queued_bytes_ >= longest_range()) continue;
    }
    std::vector<std::uint32_t> batch;
    {
      async_condition::wake_list woken;
      const std::lock_guard lock(mutex_);
      batch = choose(woken);
      placing_ = !batch.empty();
      if (!placing_) queue(batch, woken);
      if (!placing_ && next_ == order_.size()) co_return;
    }
    if (batch.empty()) continue;
    auto blocks = co_await allocate(batch);
    if (!blocks) {
      fail(blocks.error());
      co_return;
    }
    {
      async_condition::wake_list woken;
      const std::lock_guard lock(mutex_);
      std::vector<std::uint32_t> incomplete;
      for (std::size_t at = 0; at < batch.size(); ++at) {
        const std::uint32_t number = batch[at];
        pending_tensor& held = pending_[number];
        const auto size = static_cast<std::size_t>(plan_.tensors[number].size);
        held.elsewhere =
            charged_block(std::move((*blocks)[at]), arena_, host_arena::footprint(size));
        held.data = held.elsewhere.data();
        if (!staged()) {
          const std::uint64_t there = prefill(number);
          bytes_arrived_.fetch_add(there, std::memory_order_relaxed);
          held.missing.store(size - there, std::memory_order_relaxed);
          if (there == size) hand_over(number);
          if (there == size) continue;
        }
        incomplete.push_back(number);
      }
      placing_ = false;
      // More may fit: what was charged on account of this batch has been decided now.
      admission_due_ = true;
      queue(incomplete, woken);
    }
    if (staged()) co_await stage_known(std::move(batch));
  }
}

/// Memory for each of `batch`. Where not all of it can be had at once the first tensor that does
/// not fit is named.
task<result<std::vector<device_block>>> fetch::allocate(std::span<const std::uint32_t> batch) {
  std::vector<std::size_t> sizes;
  for (const std::uint32_t number : batch)
    sizes.push_back(static_cast<std::size_t>(plan_.tensors[number].size));
  auto together = co_await destinations_->allocate(sizes);
  if (together || together.error().kind() != errc::out_of_memory) co_return together;
  std::vector<device_block> blocks;
  for (std::size_t at = 0; at < batch.size(); ++at) {
    std::vector<std::size_t> size(1, sizes[at]);
    auto one = co_await destinations_->allocate(std::move(size));
    if (!one) {
      const auto& planned = plan_.tensors[batch[at]];
      const error& reason = one.error();
      if (reason.kind() != errc::out_of_memory) co_return failure{reason};
      co_return failure{error(errc::out_of_memory,
                              "no memory on " + options_.device.to_string() + " for tensor " +
                                  json_quote(model_->contents.tensors[planned.tensor].name) +
                                  " of " + format_size(sizes[at]) + ": " + reason.reason(),
                              {.uri = model_->sources[planned.file]->uri()})};
    }
    blocks.push_back(std::move(one->front()));
  }
  co_return std::move(blocks);
}

/// Has the speculative bytes of `batch` copied to where they belong, packed into slots.
task<void> fetch::stage_known(std::vector<std::uint32_t> batch) {
  staging_slot slot;
  std::vector<detail::segment> parts;
  std::size_t filled = 0;
  for (const std::uint32_t number : batch) {
    const detail::planned_tensor& planned = plan_.tensors[number];
    // Dropped by this coroutine alone, and not before the last batch.
    if (!speculative_) break;
    for (const auto& part : detail::known_parts(planned, known_[planned.file])) {
      std::uint64_t done = 0;
      while (done < part.size) {
        if (slot.bytes().size() == filled && filled > 0) {
          workers_.spawn(runtime_->loop(0).context(),
                         keep_failures(land(0, std::move(slot), std::exchange(parts, {}))));
          filled = 0;
        }
        if (filled == 0) {
          auto free = co_await destinations_->slot();
          if (!free) {
            fail(free.error());
            co_return;
          }
          slot = std::move(*free);
        }
        const std::uint64_t size =
            std::min<std::uint64_t>(part.size - done, slot.bytes().size() - filled);
        std::memcpy(slot.bytes().data() + filled,
                    speculative_->of_file[planned.file].data() + part.in_file + done,
                    static_cast<std::size_t>(size));
        parts.push_back({number, part.offset + done, size});
        filled += static_cast<std::size_t>(size);
        done += size;
        arrived(size);
      }
    }
  }
  if (!parts.empty()) {
    workers_.spawn(runtime_->loop(0).context(),
                   keep_failures(land(0, std::move(slot), std::move(parts))));
  }
  const std::lock_guard lock(mutex_);
  if (next_ == order_.size() && speculative_) drop_speculative();
}

/// Copies what lies in `slot`, part after part from its start, to where it belongs.
task<void> fetch::land(unsigned loop, staging_slot slot, std::vector<detail::segment> parts) {
  std::vector<copy_piece> pieces;
  pieces.reserve(parts.size());
  const std::byte* from = slot.bytes().data();
  std::uint64_t bytes = 0;
  for (const detail::segment& part : parts) {
    if (part.tensor != detail::segment::gap) {
      pieces.push_back(
          {pending_[part.tensor].data + part.offset, from, static_cast<std::size_t>(part.size)});
      bytes += part.size;
    }
    from += part.size;
  }
  trace* const events = model_->options.trace.get();
  const std::int64_t queued = events != nullptr ? events->now() : 0;
  const result<void> copied = co_await destinations_->engine(loop).copy(pieces);
  if (events != nullptr) {
    // Copies of a loop run one after another: this one not before the one ahead had landed.
    copy_track& track = copy_tracks_[loop];
    events->span(track.number, "copy", std::max(queued, track.landed),
                 "\"bytes\":" + std::to_string(bytes));
    track.landed = events->now();
  }
  slot.reset();
  if (!copied) {
    fail(copied.error().with({.uri = model_->store->location()}));
    co_return;
  }
  std::vector<std::uint32_t> finished;
  for (const detail::segment& part : parts) {
    if (part.tensor != detail::segment::gap && landed(part.tensor, part.size))
      finished.push_back(part.tensor);
  }
  if (!finished.empty()) completed(finished);
}

/// Copies what is there already; gives how many bytes that were.
std::uint64_t fetch::prefill(std::uint32_t number) {
  const detail::planned_tensor& planned = plan_.tensors[number];
  if (!speculative_ || planned.runs.front().begin >= known_[planned.file]) return 0;
  std::uint64_t copied = 0;
  for (const auto& part : detail::known_parts(planned, known_[planned.file])) {
    std::memcpy(pending_[number].data + part.offset,
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

/// `size` bytes of a tensor are where they belong; whether they were the last. Acquire and release:
/// whoever brings the last byte has seen every other worker's bytes.
bool fetch::landed(std::uint32_t number, std::uint64_t size) noexcept {
  return pending_[number].missing.fetch_sub(size, std::memory_order_acq_rel) == size;
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
  std::vector<std::byte> gap(staged() ? 0 : detail::gap_limit);
  sink in_place(*this, gap);
  staged_sink into_slot(*this);
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
    staging_slot slot;
    range_sink* into = &in_place;
    result<void> read;
    if (staged()) {
      auto free = co_await destinations_->slot();
      if (free) {
        slot = std::move(*free);
        into_slot.begin(slot.bytes());
        into = &into_slot;
      } else {
        read = failure{free.error()};
      }
    } else {
      in_place.begin(range);
    }
    const std::int64_t began = events != nullptr ? events->now() : 0;
    if (read) {
      range_source& source = *model_->sources[range.file];
      read = co_await source.read(loop.storage(), terms_, range.bytes, *into);
      if (events != nullptr) {
        events->span(track, "range", began,
                     "\"file\":" + json_quote(model_->contents.files[range.file].name) +
                         ",\"begin\":" + std::to_string(range.bytes.begin) +
                         ",\"bytes\":" + std::to_string(range.bytes.size));
      }
    }
    if (!read) {
      fail(read.error());
      const std::lock_guard lock(mutex_);
      --working_;
      co_return;
    }
    range_done(range.bytes.size);
    if (staged()) {
      const unsigned lane = number % runtime_->threads();
      workers_.spawn(loop.context(),
                     keep_failures(land(lane, std::move(slot), std::move(range.segments))));
    }
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
