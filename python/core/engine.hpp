#pragma once

#include <headrace/stream/runtime.hpp>

#include <nanobind/nanobind.h>

#include <memory>

namespace headrace::python {

/// The process's runtime with that many loops (0: as many as fit the machine), made at the first
/// call. Throws `cancelled` after `shut_down`. Needs the GIL, which guards the table of runtimes.
[[nodiscard]] std::shared_ptr<runtime> engine(unsigned threads);

/// Stops every runtime and waits for its threads, so that none of them runs while the interpreter
/// and the process are taken down. Streams that are open end with `cancelled`. Needs the GIL, and
/// releases it while it waits.
void shut_down();

/// Gives the GIL away while it lives. Once `shut_down` has begun it does not come back: a daemon
/// thread that asked for the GIL then would be ended by the interpreter in the middle of C++
/// frames, which ends the process. Such a thread stands still instead until the process is gone.
class without_gil {
 public:
  without_gil() noexcept;
  ~without_gil();
  without_gil(const without_gil&) = delete;
  without_gil& operator=(const without_gil&) = delete;

 private:
  PyThreadState* const thread_;
};

/// Whether this is the thread that the process began with, or was forked on.
[[nodiscard]] bool on_main_thread() noexcept;

}  // namespace headrace::python
