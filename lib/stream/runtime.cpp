#include <headrace/stream/runtime.hpp>

#include <headrace/coro/sync_wait.hpp>

#include <headrace/io/thread.hpp>
#include <stream/runtime_state.hpp>

#include <algorithm>
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

}  // namespace

runtime_state::runtime_state(runtime_options options)
    : threads_(choose_threads(options.threads)),
      backend_(choose_backend(options.backend)),
      memory_(options.idle_memory),
      helpers_(choose_helpers()) {}

void runtime_state::start() {
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
      loop_services services({.backend = backend_, .helpers = &*helpers_}, buckets_, *random_);
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
  streams_.request_stop();
  try {
    sync_wait(streams_.join());
  } catch (...) {  // NOLINT(bugprone-empty-catch): streams keep their errors for their consumers
  }
  for (const auto& loop : loops_) {
    loop->services->context().stop();
    loop->thread.join();
  }
  // Here, not with the state: models and tensors may keep that for long.
  helpers_.reset();
}

}  // namespace detail

runtime::runtime(runtime_options options) : state_(std::make_shared<detail::runtime_state>(options)) {}

runtime::~runtime() { state_->stop(); }

runtime& runtime::shared() {
  // Never destroyed: at the process's end its threads may still be in the kernel, and tensors may outlive static objects.
  static auto* const instance = new runtime;
  return *instance;
}

io_backend runtime::backend() const { return state_->backend(); }

unsigned runtime::threads() const noexcept { return state_->threads(); }

}  // namespace headrace
