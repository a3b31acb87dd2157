#pragma once

#include <headrace/coro/async_scope.hpp>
#include <headrace/coro/with.hpp>

#include <cstddef>
#include <utility>
#include <vector>

namespace headrace {

namespace detail {

template <class T>
task<void> store(task<T> work, std::optional<T>* into) {
  T value = co_await std::move(work);
  into->emplace(std::move(value));
}

/// Who came first, with a value or with an exception.
template <class T>
struct race_state {
  std::mutex mutex;
  bool decided = false;
  std::optional<std::pair<std::size_t, T>> winner;
  std::exception_ptr failure;
};

template <class T>
task<void> race(task<T> work, std::size_t index, race_state<T>* state, async_scope* scope) {
  std::optional<T> value;
  std::exception_ptr failed;
  try {
    T given = co_await std::move(work);
    value.emplace(std::move(given));
  } catch (...) {
    failed = std::current_exception();
  }
  {
    const std::lock_guard lock(state->mutex);
    if (!std::exchange(state->decided, true)) {
      if (value) state->winner.emplace(index, std::move(*value));
      state->failure = std::move(failed);
    }
  }
  scope->request_stop();
}

inline executor& executor_for_children(const environment& given) noexcept {
  static inline_executor fallback;
  return given.executor != nullptr ? *given.executor : fallback;
}

}  // namespace detail

/// Runs all of `works` at once on the awaiter's executor and gives their values in order. The first
/// error stops the others; all have finished before it is thrown.
template <class T>
[[nodiscard]] task<std::vector<T>> when_all(std::vector<task<T>> works) {
  const environment given = co_await current_environment();
  std::vector<std::optional<T>> stored(works.size());
  async_scope scope(given.stop);
  for (std::size_t at = 0; at < works.size(); ++at) {
    scope.spawn(detail::executor_for_children(given),
                detail::store(std::move(works[at]), &stored[at]));
  }
  co_await scope.join();
  std::vector<T> values;
  values.reserve(stored.size());
  for (auto& value : stored) values.push_back(std::move(*value));
  co_return values;
}

[[nodiscard]] inline task<void> when_all(std::vector<task<void>> works) {
  const environment given = co_await current_environment();
  async_scope scope(given.stop);
  for (auto& work : works) scope.spawn(detail::executor_for_children(given), std::move(work));
  co_await scope.join();
}

/// Runs all of `works` at once and gives the index and the value of the first that finishes; the
/// others are stopped, and all have finished before it returns. Throws where one fails before any
/// has finished. `works` must not be empty.
template <class T>
[[nodiscard]] task<std::pair<std::size_t, T>> when_any(std::vector<task<T>> works) {
  HEADRACE_ASSERT(!works.empty());
  const environment given = co_await current_environment();
  detail::race_state<T> state;
  async_scope scope(given.stop);
  for (std::size_t at = 0; at < works.size(); ++at) {
    scope.spawn(detail::executor_for_children(given),
                detail::race(std::move(works[at]), at, &state, &scope));
  }
  co_await scope.join();
  if (state.failure) std::rethrow_exception(state.failure);
  co_return std::move(*state.winner);
}

}  // namespace headrace
