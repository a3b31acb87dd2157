#include <headrace/stream/runtime.hpp>

#include "stream/fork.hpp"
#include "stream/runtime_state.hpp"

#include <headrace/coro/sync_wait.hpp>
#include <headrace/io/thread.hpp>

#include <algorithm>
#include <condition_variable>
#include <future>
#include <string>
#include <utility>

namespace headrace {
namespace detail {
namespace {

unsigned choose_threads(unsigned wanted, bool hosted) {
  constexpr unsigned most = 8;
  if (hosted) {
    if (wanted > 1)
      throw error(errc::invalid_request,
                  "a runtime with a host has one loop, on the host's thread, not " +
                      std::to_string(wanted) + ": leave out the threads, or the host");
    return 1;
  }
  if (wanted > 0) return wanted;
  return std::clamp(std::thread::hardware_concurrency() / 2, 1u, most);
}

unsigned choose_helpers() { return std::clamp(std::thread::hardware_concurrency(), 2u, 8u); }

io_backend choose_backend(io_backend wanted) {
  if (wanted == io_backend::automatic) wanted = io_backend_from_environment().value();
  return resolve_backend(wanted);
}

staging_options checked(staging_options staging) {
  constexpr std::size_t smallest = 64_KiB;
  constexpr std::size_t page = 4096;
  if (staging.slots == 0 || staging.slot_size < smallest || staging.slot_size % page != 0) {
    throw error(errc::invalid_request,
                "staging memory of " + std::to_string(staging.slots) + " slots of " +
                    format_size(staging.slot_size) +
                    ": there must be at least one, of at least 64 KiB and whole 4 KiB pages");
  }
  return staging;
}

}  // namespace

/// A loop on its host's thread.
class runtime_state::guest final : public hosted_loop {
 public:
  guest(runtime_state& owner, std::shared_ptr<loop_host> host)
      : services({.backend = owner.backend_, .helpers = &*owner.parts_->helpers},
                 owner.parts_->buckets, *owner.random_),
        owner_(owner),
        host_(std::move(host)),
        descriptor_(services.context().host_descriptor()) {}

  [[nodiscard]] int descriptor() const noexcept override { return descriptor_; }

  std::optional<steady_time> poll() override {
    if (left_behind()) return std::nullopt;
    if (!services.context().on_this_thread()) {
      throw error(errc::invalid_request,
                  "a hosted loop was driven by another thread than the one that made its runtime: "
                  "run the host on that thread alone, or use a runtime without a host, which has "
                  "threads of its own");
    }
    HEADRACE_ASSERT(!turning_);
    const std::lock_guard turn(owner_.turns_);
    turning_ = true;
    const auto next = services.context().poll();
    turning_ = false;
    return next;
  }

  [[nodiscard]] bool left_behind() const noexcept override {
    return left_.load(std::memory_order_relaxed);
  }

  void end() noexcept override { owner_.stop(); }

  /// Whether the caller is something that the loop runs.
  [[nodiscard]] bool turning() const noexcept { return turning_; }

  void attach() { host_->attach(*this); }
  void detach() noexcept {
    if (const auto host = std::exchange(host_, nullptr)) host->detach();
  }

  /// In a forked child, where nobody drives this any more.
  void leave() noexcept { left_.store(true, std::memory_order_relaxed); }

  loop_services services;

 private:
  runtime_state& owner_;
  std::shared_ptr<loop_host> host_;
  const int descriptor_;
  bool turning_ = false;
  std::atomic<bool> left_{false};  // relaxed: changes where there is but one thread
};

runtime_state::runtime_state(runtime_options options)
    : hosted_(options.host != nullptr),
      threads_(choose_threads(options.threads, hosted_)),
      backend_(choose_backend(options.backend)),
      idle_memory_(options.idle_memory),
      staging_(checked(options.staging)),
      parts_(std::make_unique<parts>(options.idle_memory)) {
  if (hosted_) start_hosted(std::move(options.host));
}

runtime_state::~runtime_state() {
  stop();
  forget_at_fork(*this);
}

void runtime_state::start_hosted(std::shared_ptr<loop_host> host) {
  guest_ = std::make_unique<guest>(*this, std::move(host));
  loops_.push_back(std::make_unique<running_loop>());
  loops_.back()->services = &guest_->services;
  prepare_for_fork(*this);
  prepared_.store(true, std::memory_order_release);
  try {
    guest_->attach();
  } catch (...) {
    forget_at_fork(*this);
    throw;
  }
  started_ = true;
}

runtime_state::parts::parts(std::size_t idle_memory)
    : memory(idle_memory), helpers(choose_helpers()) {}

void runtime_state::start() {
  // Once: every stream comes by here, and the registry is the whole process's.
  if (!prepared_.load(std::memory_order_acquire)) {
    prepare_for_fork(*this);
    prepared_.store(true, std::memory_order_release);
  }
  const std::lock_guard lock(mutex_);
  throw_if_stopped();
  if (started_) return;
  try {
    for (unsigned number = 0; number < threads_; ++number) {
      loops_.push_back(std::make_unique<running_loop>());
      start_loop(*loops_.back());
    }
  } catch (...) {
    if (!loops_.empty()) loops_.pop_back();
    for (auto& loop : loops_) {
      loop->services->context().stop();
      loop->thread.join();
    }
    loops_.clear();
    throw;
  }
  started_ = true;
}

void runtime_state::throw_if_stopped() const {
  if (!stopped_) return;
  if (generation() > 0 && hosted_) {
    throw error(errc::cancelled,
                "this process was forked, and a runtime with a host stays with its parent: make "
                "another runtime here");
  }
  throw error(errc::cancelled, "the runtime has been destroyed");
}

void runtime_state::check_waiter(const executor* waiting) const {
  if (!hosted_ || std::this_thread::get_id() != host_thread_) return;
  if (dynamic_cast<const blocking_executor*>(waiting) == nullptr) return;
  {
    const std::lock_guard lock(mutex_);
    if (stopped_) return;  // nothing runs any more that could be waited for
  }
  throw error(errc::invalid_request,
              "sync_wait blocks the thread that drives the runtime's loop, and would wait for "
              "itself: await on the host's own loop, or use a runtime without a host");
}

void runtime_state::start_loop(running_loop& started) {
  std::promise<loop_services*> ready;
  const std::string name = "headrace-" + std::to_string(loops_.size() - 1);
  started.thread = start_thread(name.c_str(), [this, &ready] {
    try {
      loop_services services({.backend = backend_, .helpers = &*parts_->helpers}, parts_->buckets,
                             *random_);
      ready.set_value(&services);
      services.context().run();
    } catch (...) {
      // Only set-up throws; what runs on a loop keeps its errors.
      ready.set_exception(std::current_exception());
    }
  });
  try {
    started.services = ready.get_future().get();
  } catch (...) {
    started.thread.join();
    throw;
  }
}

void runtime_state::stop() noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(stopped_, true) || !started_) return;
  }
  if (guest_ != nullptr) {
    end_hosted();
    return;
  }
  for (const auto& loop : loops_) HEADRACE_ASSERT(!loop->services->context().on_this_thread());
  parts_->streams.request_stop();
  sync_wait(end_of_streams());
  for (const auto& loop : loops_) {
    loop->services->context().stop();
    {
      const std::lock_guard lock(mutex_);  // against `copies`
      loop->services = nullptr;
    }
    loop->thread.join();
  }
  // Here, not with the state: models and tensors may keep that for long.
  parts_->devices.clear();
  parts_->helpers.reset();
}

result<std::shared_ptr<device_services>> runtime_state::open_device(std::uint32_t index) {
  // Held while the driver initialises: whoever asks meanwhile wants the same.
  const std::lock_guard lock(parts_->devices_mutex);
  auto& known = parts_->devices[index];
  if (known == nullptr) {
    auto opened = cuda_device::open(index);
    if (!opened) {
      parts_->devices.erase(index);
      return failure{opened.error()};
    }
    known = std::make_shared<device_services>(std::move(*opened), staging_, *parts_->helpers);
  }
  return known;
}

copy_statistics runtime_state::copies() {
  copy_statistics sum;
  const std::lock_guard lock(mutex_);
  for (const auto& loop : loops_) {
    if (loop->services != nullptr) sum += loop->services->copies();
  }
  return sum;
}

result<copy_engine*> loop_services::engine(std::shared_ptr<cuda_device> target) {
  HEADRACE_ASSERT(context_.on_this_thread());
  const std::uint32_t index = target->index();
  if (const auto known = engines_.find(index); known != engines_.end()) return known->second.get();
  auto made = make_cuda_copy_engine(context_, std::move(target));
  if (!made) return failure{made.error()};
  const std::lock_guard lock(engines_mutex_);
  return engines_.emplace(index, std::move(*made)).first->second.get();
}

copy_statistics loop_services::copies() const {
  copy_statistics sum;
  const std::lock_guard lock(engines_mutex_);
  for (const auto& [index, engine] : engines_) sum += engine->statistics();
  return sum;
}

task<void> runtime_state::end_of_streams() {
  try {
    co_await parts_->streams.join();
  } catch (...) {  // NOLINT(bugprone-empty-catch): streams keep their errors for their consumers
  }
}

task<void> runtime_state::end_loop(io_context* loop) {
  co_await end_of_streams();
  loop->stop();
}

/// The loop is driven from here to its end: its host may be gone, or waits for this.
void runtime_state::end_hosted() noexcept {
  io_context& loop = guest_->services.context();
  HEADRACE_ASSERT(loop.on_this_thread() && !guest_->turning());
  guest_->detach();
  parts_->streams.request_stop();
  {
    const std::lock_guard turn(turns_);
    async_scope ending;
    ending.spawn(loop, end_loop(&loop));
    loop.run();
  }
  {
    const std::lock_guard lock(mutex_);  // against `copies`
    loops_.clear();
  }
  guest_.reset();
  parts_->devices.clear();
  parts_->helpers.reset();
}

// Around a fork

/// Where the loops wait while another thread forks.
struct runtime_state::parking_place {
  struct car final : work_item {
    explicit car(parking_place& owner) noexcept : work_item(&wait), place(owner) {}
    static void wait(work_item& item) noexcept {
      parking_place& place = static_cast<car&>(item).place;
      std::unique_lock lock(place.mutex);
      ++place.parked;
      place.changed.notify_all();
      while (!place.open) place.changed.wait(lock);
      --place.parked;
      place.changed.notify_all();
    }
    parking_place& place;
  };

  std::mutex mutex;
  std::condition_variable changed;
  std::size_t parked = 0;
  bool open = false;
  std::vector<std::unique_ptr<car>> cars;
};

void runtime_state::rest() {
  {
    const std::lock_guard lock(mutex_);
    if (!started_ || stopped_) return;
    if (!hosted_) {
      parking_ = std::make_unique<parking_place>();
      for (const auto& loop : loops_) {
        // A loop that forks itself, from a callback, stands still anyway.
        if (loop->services->context().on_this_thread()) continue;
        parking_->cars.push_back(std::make_unique<parking_place::car>(*parking_));
        loop->services->context().post(*parking_->cars.back());
      }
    }
  }
  if (hosted_) {
    // Its host may not come for long: so it is kept from taking a turn instead of being sent one.
    if (std::this_thread::get_id() == host_thread_) return;
    turns_.lock();
    resting_ = true;
    return;
  }
  std::unique_lock lock(parking_->mutex);
  while (parking_->parked < parking_->cars.size()) parking_->changed.wait(lock);
}

void runtime_state::hold() {
  mutex_.lock();
  held_ = true;
}

void runtime_state::unpark() noexcept {
  if (parking_ != nullptr) {
    {
      std::unique_lock lock(parking_->mutex);
      parking_->open = true;
      parking_->changed.notify_all();
      while (parking_->parked > 0) parking_->changed.wait(lock);
    }
    parking_.reset();
  }
  if (std::exchange(resting_, false)) turns_.unlock();
  held_ = false;
  mutex_.unlock();
}

void runtime_state::become_child() noexcept {
  if (started_ && !stopped_) {
    generation_.fetch_add(1, std::memory_order_relaxed);
    // Left behind, neither freed nor joined: their threads are not here.
    static_cast<void>(parking_.release());
    for (auto& loop : loops_) static_cast<void>(loop.release());
    loops_.clear();
    static_cast<void>(parts_.release());
    parts_ = std::make_unique<parts>(idle_memory_);
    started_ = false;
    if (hosted_) {
      // Its host is the parent's: nobody would drive another loop.
      guest_->leave();
      static_cast<void>(guest_.release());
      stopped_ = true;
    }
  }
  if (std::exchange(resting_, false)) turns_.unlock();
  held_ = false;
  mutex_.unlock();
}

}  // namespace detail

runtime::runtime(runtime_options options)
    : state_(std::make_shared<detail::runtime_state>(options)) {}

runtime::~runtime() { state_->stop(); }

runtime& runtime::shared() {
  // Never destroyed: at the process's end its threads may still be in the kernel, and tensors may
  // outlive static objects.
  static auto* const instance = new runtime;
  return *instance;
}

io_backend runtime::backend() const { return state_->backend(); }

unsigned runtime::threads() const noexcept { return state_->threads(); }

copy_statistics runtime::copies() const { return state_->copies(); }

}  // namespace headrace
