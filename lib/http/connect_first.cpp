#include "http/connect_first.hpp"

#include <headrace/coro/async_condition.hpp>
#include <headrace/coro/async_scope.hpp>
#include <headrace/coro/with.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <mutex>
#include <utility>

namespace headrace::detail {
namespace {

enum class attempt_state : std::uint8_t { waiting, trying, failed, connected };

struct race {
  // Everything happens on one thread; the mutex is what `async_condition` wants.
  std::mutex mutex;
  async_condition changed;
  std::vector<attempt_state> states;
  std::unique_ptr<byte_stream> winner;
  std::size_t winner_index = 0;
  std::error_code last_failure;
  std::size_t over = 0;  ///< Attempts that have ended.
};

task<void> attempt(io_context& context, endpoint address, std::size_t index,
                   std::chrono::nanoseconds limit, race* shared) {
  std::vector<endpoint> alone(1, address);
  auto connected = co_await connect_tcp(context, std::move(alone), limit);
  async_condition::wake_list woken;
  const std::lock_guard lock(shared->mutex);
  ++shared->over;
  if (!connected) {
    shared->states[index] = attempt_state::failed;
    if (kind_of(connected.error()) != errc::cancelled) shared->last_failure = connected.error();
  } else {
    shared->states[index] = attempt_state::connected;
    if (shared->winner == nullptr) {
      shared->winner = std::move(*connected);
      shared->winner_index = index;
    }
  }
  shared->changed.notify_all(woken);
}

/// Waits until an attempt ends after the first `seen` did, or for a stop.
task<void> wait_for_end(race* shared, std::size_t seen) {
  std::unique_lock lock(shared->mutex);
  while (shared->over == seen) {
    const bool notified = co_await shared->changed.wait(lock);
    if (!notified) co_return;
  }
}

}  // namespace

std::vector<endpoint> in_turn(std::vector<endpoint> addresses, std::size_t turns) {
  if (addresses.size() < 2) return addresses;
  const auto is_other = [preferred = addresses.front().family()](const endpoint& address) {
    return address.family() != preferred;
  };
  std::vector<endpoint> others;
  std::copy_if(addresses.begin(), addresses.end(), std::back_inserter(others), is_other);
  std::erase_if(addresses, is_other);
  const auto rotate = [turns](std::vector<endpoint>& alike) {
    if (alike.empty()) return;
    const auto first = static_cast<std::ptrdiff_t>(turns % alike.size());
    std::rotate(alike.begin(), alike.begin() + first, alike.end());
  };
  rotate(addresses);
  rotate(others);
  std::vector<endpoint> ordered;
  ordered.reserve(addresses.size() + others.size());
  for (std::size_t at = 0; at < std::max(addresses.size(), others.size()); ++at) {
    if (at < addresses.size()) ordered.push_back(addresses[at]);
    if (at < others.size()) ordered.push_back(others[at]);
  }
  return ordered;
}

task<connect_outcome> connect_first(io_context& context, std::vector<endpoint> addresses,
                                    std::chrono::nanoseconds limit,
                                    std::chrono::nanoseconds patience) {
  const environment given = co_await current_environment();
  race shared;
  shared.states.resize(addresses.size(), attempt_state::waiting);
  async_scope scope(given.stop);
  std::size_t begun = 0;
  std::size_t seen = 0;
  while (shared.winner == nullptr && seen < addresses.size() && !given.stop.stop_requested()) {
    if (begun < addresses.size()) {
      shared.states[begun] = attempt_state::trying;
      scope.spawn(context, attempt(context, addresses[begun], begun, limit, &shared));
      ++begun;
    }
    auto ended = wait_for_end(&shared, seen);
    if (begun < addresses.size()) ended = with_timeout(patience, std::move(ended));
    co_await std::move(ended);
    seen = shared.over;
  }

  connect_outcome outcome;
  for (std::size_t index = 0; index < begun; ++index) {
    const bool overtaken = shared.winner != nullptr && index < shared.winner_index &&
                           shared.states[index] == attempt_state::trying;
    if (shared.states[index] == attempt_state::failed || overtaken)
      outcome.useless.push_back(addresses[index]);
  }
  const bool stopped = shared.winner == nullptr && given.stop.stop_requested();
  scope.request_stop();
  co_await scope.join();
  if (stopped) {
    outcome.failed = make_error_code(errc::cancelled);
    outcome.useless.clear();
  } else {
    outcome.stream = std::move(shared.winner);
    outcome.failed = shared.last_failure;
  }
  co_return outcome;
}

}  // namespace headrace::detail
