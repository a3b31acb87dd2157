#include "log_lines.hpp"

#include <headrace/base/log.hpp>

#include <atomic>
#include <deque>
#include <mutex>
#include <string>
#include <utility>

namespace headrace::python {

namespace nb = nanobind;

namespace {

/// Lines beyond this are counted and dropped: nobody may be there to take them.
constexpr std::size_t most_lines = 1'000;

struct log_queue {
  std::mutex mutex;
  std::deque<std::pair<log_level, std::string>> lines;
  std::size_t dropped = 0;
  std::atomic<bool> filled{false};  // relaxed: a line that is missed goes along the next time
  PyObject* hook = nullptr;         ///< Guarded by the GIL; kept until the process ends.
};

// Never destroyed: the engine's threads may log while the process ends.
log_queue& queue() {
  static auto* const instance = new log_queue;
  return *instance;
}

void keep(log_level level, std::string_view line) {
  log_queue& into = queue();
  const std::lock_guard lock(into.mutex);
  if (into.lines.size() < most_lines) {
    into.lines.emplace_back(level, line);
  } else {
    ++into.dropped;
  }
  into.filled.store(true, std::memory_order_relaxed);
}

void hand_over(PyObject* hook, log_level level, const std::string& line) noexcept {
  PyObject* const text =
      PyUnicode_DecodeUTF8(line.data(), static_cast<Py_ssize_t>(line.size()), "replace");
  PyObject* const given =
      text == nullptr ? nullptr : PyObject_CallFunction(hook, "iO", static_cast<int>(level), text);
  if (given == nullptr) PyErr_WriteUnraisable(hook);
  Py_XDECREF(given);
  Py_XDECREF(text);
}

}  // namespace

void hand_over_log_lines() noexcept {
  log_queue& from = queue();
  if (from.hook == nullptr || !from.filled.load(std::memory_order_relaxed)) return;
  std::deque<std::pair<log_level, std::string>> lines;
  std::size_t dropped = 0;
  {
    const std::lock_guard lock(from.mutex);
    lines.swap(from.lines);
    dropped = std::exchange(from.dropped, 0);
    from.filled.store(false, std::memory_order_relaxed);
  }
  for (const auto& [level, line] : lines) hand_over(from.hook, level, line);
  if (dropped > 0) {
    hand_over(from.hook, log_level::warning,
              std::to_string(dropped) + " more lines were dropped: nobody took them in time");
  }
}

void bind_log(nb::module_& module) {
  module.def("collect_log", [](nb::object hook, int level) {
    Py_XDECREF(std::exchange(queue().hook, hook.release().ptr()));
    set_log_sink(&keep, static_cast<log_level>(level));
  });
}

}  // namespace headrace::python
