#include "stream/fork.hpp"

#include "stream/runtime_state.hpp"

#include <headrace/io/inherited.hpp>

#include <pthread.h>

#include <mutex>
#include <set>

namespace headrace::detail {
namespace {

struct fork_registry {
  std::mutex mutex;
  std::set<runtime_state*> runtimes;
};

// Never destroyed: a process may fork while its static objects are torn down.
fork_registry& registry() {
  static auto* const instance = new fork_registry;
  return *instance;
}

void before_fork() {
  auto& known = registry();
  known.mutex.lock();
  for (runtime_state* const state : known.runtimes) state->park();
  inherited_descriptors::lock();
}

void after_fork_in_parent() {
  auto& known = registry();
  inherited_descriptors::unlock();
  for (runtime_state* const state : known.runtimes) state->unpark();
  known.mutex.unlock();
}

void after_fork_in_child() {
  auto& known = registry();
  inherited_descriptors::close_in_child();
  for (runtime_state* const state : known.runtimes) state->become_child();
  known.mutex.unlock();
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
  const std::lock_guard lock(known.mutex);
  known.runtimes.erase(&state);
}

}  // namespace headrace::detail
