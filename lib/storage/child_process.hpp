#pragma once

#include <headrace/base/result.hpp>

#include <chrono>
#include <cstddef>
#include <stop_token>
#include <string>
#include <vector>

namespace headrace {

/// What a program has written to its standard output, and how it has ended.
struct child_outcome {
  std::string output;
  int exit_status = 0;  ///< As a shell has it: 128 and the signal's number where one killed it.
};

/// Runs a program and waits for it: `arguments` begin with its name, which is looked for in `PATH`
/// where it has no `/`. No shell sees them. Its standard input and standard error are /dev/null; it
/// gets our environment, a signal mask that blocks nothing and a process group of its own, so that
/// nothing of it is left when the time is over.
///
/// Blocks: for helper threads alone. Errors name the program and nothing that it says: `not_found`,
/// `access_denied`; `timeout` after `limit`; `protocol_error` with more than `most` bytes of
/// output; `cancelled` at a stop.
[[nodiscard]] result<child_outcome> run_child(const std::vector<std::string>& arguments,
                                              std::chrono::milliseconds limit, std::size_t most,
                                              const std::stop_token& stop);

}  // namespace headrace
