#include <headrace/stream/runtime.hpp>

#include "stream/fork.hpp"
#include "stream/runtime_state.hpp"

#include <headrace/coro/sync_wait.hpp>
#include <headrace/io/thread.hpp>

#include <algorithm>
#include <condition_variable>
#include <future>
#include <string>

namespace headrace {
namespace detail {
namespace {

unsigned choose_threads(unsigned wanted) {
  constexpr unsigned most = 8;
  if (wanted > 0) return wanted;
  return std::clamp(std::thread::hardware_concurrency() / 2, 1u, most);
}

unsigned choose_helpers() { return std::clamp(std::thread::hardware_concurrency(), 2u, 8u); }

io_backend choose_backend(io_backend wanted) {
  if (wanted == io_backend::automatic) wanted = io_backend_from_environment().value();
  return resolve_backend(wanted);
}

runtime_options checked(runtime_options options) {
  constexpr std::size_t smallest = 64_KiB;
  constexpr std::size_t page = 4096;
  const staging_options& staging = options.staging;
  if (staging.slots == 0 || staging.slot_size < smallest || staging.slot_size % page != 0) {
    throw error(errc::invalid_request,
                "staging memory of " + std::to_string(staging.slots) + " slots of " +
                    format_size(staging.slot_size) +
                    ": there must be at least one, of at least 64 KiB and whole 4 KiB pages");
  }
  return options;
}

}  // namespace

runtime_state::runtime_state(runtime_options options)
    : options_(checked(options)),
      threads_(choose_threads(options.threads)),
      backend_(choose_backend(options.backend)),
      parts_(std::make_unique<parts>(options.idle_memory)) {}

runtime_state::~runtime_state() {
  stop();
  forget_at_fork(*this);
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
  if (stopped_) throw error(errc::cancelled, "the runtime has been destroyed");
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
  for (const auto& loop : loops_) HEADRACE_ASSERT(!loop->services->context().on_this_thread());
  parts_->streams.request_stop();
  try {
    sync_wait(parts_->streams.join());
  } catch (...) {  // NOLINT(bugprone-empty-catch): streams keep their errors for their consumers
  }
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
    known =
        std::make_shared<device_services>(std::move(*opened), options_.staging, *parts_->helpers);
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
    parking_ = std::make_unique<parking_place>();
    for (const auto& loop : loops_) {
      // A loop that forks itself, from a callback, stands still anyway.
      if (loop->services->context().on_this_thread()) continue;
      parking_->cars.push_back(std::make_unique<parking_place::car>(*parking_));
      loop->services->context().post(*parking_->cars.back());
    }
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
    parts_ = std::make_unique<parts>(options_.idle_memory);
    started_ = false;
  }
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
