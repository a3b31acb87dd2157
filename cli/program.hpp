#pragma once

namespace headrace::cli {

/// The whole program: gives its exit status. Blocks SIGINT and SIGTERM in the calling thread, takes
/// them itself while it runs, and leaves the process at once where a second one arrives.
[[nodiscard]] int run_program(int argc, const char* const* argv);

}  // namespace headrace::cli
