#pragma once

#include <nanobind/nanobind.h>

namespace headrace::python {

/// Hands the lines that the engine has logged meanwhile to Python's logging, oldest first. The
/// engine's threads never wait for the GIL: they leave their lines in a bounded queue, and whoever
/// holds the GIL anyway takes them along. Does nothing where there are none. Needs the GIL.
void hand_over_log_lines() noexcept;

/// `collect_log(hook, level)`: lines from `level` on (debug 0, info 1, warning 2, error 3, none 4)
/// go to `hook(level, line)`.
void bind_log(nanobind::module_& module);

}  // namespace headrace::python
