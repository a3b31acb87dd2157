#include "call.hpp"

#include "engine.hpp"

#include <nanobind/stl/shared_ptr.h>
namespace headrace::python {
namespace {

/// How long a signal may wait that was handed to another thread of the process.
constexpr std::chrono::milliseconds signal_interval{100};
constexpr std::chrono::milliseconds for_ever{-1};

}  // namespace

void call::notify(nb::object callback) {
  const bool watched = !finished() && callback.is_valid() && !callback.is_none();
  when_finished_ = watched ? std::move(callback) : nb::object();
  watched_.store(watched, std::memory_order_release);
}

void call::finish() noexcept {
  finished_.store(true, std::memory_order_release);
  if (!watched_.load(std::memory_order_acquire)) return;
  // Whoever watches runs the executor and holds the GIL; another thread comes here only where the
  // executor has been abandoned under a watcher.
  const nb::gil_scoped_acquire held;
  const nb::object callback = std::exchange(when_finished_, nb::object());
  if (!callback.is_valid()) return;
  PyObject* const given = PyObject_CallNoArgs(callback.ptr());
  if (given == nullptr) PyErr_WriteUnraisable(callback.ptr());
  Py_XDECREF(given);
}

void wait_for(call& running, event_executor& here) {
  if (running.finished()) return;
  const bool signals = on_main_thread();
  std::exception_ptr interrupted;
  {
    const without_gil released;
    while (!running.finished()) {
      const bool ready = here.wait(signals ? signal_interval : for_ever);
      here.run_ready();
      if (ready || !signals || interrupted) continue;
      const nb::gil_scoped_acquire held;
      if (PyErr_CheckSignals() == 0) continue;
      interrupted = std::make_exception_ptr(nb::python_error());
      running.request_stop();
    }
  }
  if (interrupted) std::rethrow_exception(interrupted);
}

pending::~pending() {
  if (!running_) return;
  running_->notify(nb::object());
  if (!running_->finished()) running_->request_stop();
}

void bind_calls(nb::module_& module) {
  nb::class_<event_executor>(module, "Executor",
                             "Completions for one event loop: watch `fileno()`, call `drain()`.")
      .def(nb::new_([] { return std::make_shared<event_executor>(); }))
      .def("fileno", &event_executor::descriptor)
      .def("drain",
           [](event_executor& self) {
             self.run_ready();
             hand_over_log_lines();
           })
      .def("abandon", &event_executor::abandon);

  nb::class_<pending>(module, "Pending", "A call under way, or finished.")
      .def_prop_ro("finished", [](const pending& self) { return (*self).finished(); })
      .def("take", [](const pending& self) { return (*self).take(); })
      .def("request_stop", [](const pending& self) { (*self).request_stop(); })
      .def(
          "notify",
          [](const pending& self, nb::object callback) { (*self).notify(std::move(callback)); },
          nb::arg("callback").none());
}

}  // namespace headrace::python
