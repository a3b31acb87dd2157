#pragma once

#include <headrace/stream/runtime.hpp>

#include <memory>

namespace headrace::python {

/// The process's runtime with that many loops (0: as many as fit the machine), made at the first
/// call. Throws `cancelled` after `shut_down`. Needs the GIL, which guards the table of runtimes.
[[nodiscard]] std::shared_ptr<runtime> engine(unsigned threads);

/// Stops every runtime and waits for its threads, so that none of them runs while the interpreter
/// and the process are taken down. Streams that are open end with `cancelled`. Needs the GIL, and
/// releases it while it waits.
void shut_down();

}  // namespace headrace::python
