#include "stream/fork.hpp"

#include "stream/runtime_state.hpp"

#include <headrace/io/inherited.hpp>

#include <pthread.h>

#include <condition_variable>
#include <mutex>
#include <set>

namespace headrace::detail {
namespace {

struct fork_registry {
  std::mutex mutex;
  std::condition_variable over;
  bool forking = false;  ///< The runtimes below stay as they are until it is over.
  std::set<runtime_state*> runtimes;
};

// Never destroyed: a process may fork while its static objects are torn down.
fork_registry& registry() {
  static auto* const instance = new fork_registry;
  return *instance;
}

void before_fork() {
  auto& known = registry();
  std::set<runtime_state*> resting;
  {
    std::unique_lock lock(known.mutex);
    while (known.forking) known.over.wait(lock);
    known.forking = true;
    resting = known.runtimes;
  }
  // Without any mutex: a loop that is to come to rest may be about to begin a stream.
  for (runtime_state* const state : resting) state->rest();
  for (runtime_state* const state : resting) state->hold();
  known.mutex.lock();
  inherited_descriptors::lock();
}

void after_fork(void (runtime_state::*resume)() noexcept) noexcept {
  auto& known = registry();
  for (runtime_state* const state : known.runtimes) {
    if (state->held()) (state->*resume)();
  }
  known.forking = false;
  known.over.notify_all();
  known.mutex.unlock();
}

void after_fork_in_parent() {
  inherited_descriptors::unlock();
  after_fork(&runtime_state::unpark);
}

void after_fork_in_child() {
  inherited_descriptors::close_in_child();
  after_fork(&runtime_state::become_child);
}

}  // namespace

void prepare_for_fork(runtime_state& state) {
  // At the first use, not at static initialisation: a process that never streams has no handlers.
  static std::once_flag registered;
  std::call_once(registered, [] {
    ::pthread_atfork(&before_fork, &after_fork_in_parent, &after_fork_in_child);
  });
  auto& known = registry();
  const std::lock_guard lock(known.mutex);
  known.runtimes.insert(&state);
}

void forget_at_fork(runtime_state& state) noexcept {
  auto& known = registry();
  std::unique_lock lock(known.mutex);
  while (known.forking) known.over.wait(lock);
  known.runtimes.erase(&state);
}

}  // namespace headrace::detail
