#include <headrace/base/log.hpp>

#include <atomic>
#include <mutex>

namespace headrace {
namespace {

struct sink_state {
  std::mutex mutex;
  log_sink sink;
};

// Never destroyed: a loop thread may log while static objects are torn down.
sink_state& state() {
  static auto* const instance = new sink_state;
  return *instance;
}

// Relaxed everywhere: a line logged around a change of the level may go either way.
std::atomic<log_level> threshold_level{log_level::off};

}  // namespace

void set_log_sink(log_sink sink, log_level threshold) {
  auto& current = state();
  const std::lock_guard lock(current.mutex);
  threshold_level.store(sink ? threshold : log_level::off, std::memory_order_relaxed);
  current.sink = std::move(sink);
}

bool log_enabled(log_level level) noexcept {
  return level >= threshold_level.load(std::memory_order_relaxed) && level != log_level::off;
}

void log(log_level level, std::string_view line) {
  if (!log_enabled(level)) return;
  auto& current = state();
  const std::lock_guard lock(current.mutex);
  if (current.sink) current.sink(level, line);
}

}  // namespace headrace
