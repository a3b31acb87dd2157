#pragma once

#include "storage/aws_keys.hpp"

#include <headrace/coro/task.hpp>

#include <chrono>
#include <string>

namespace headrace {

/// Runs the program of a profile's `credential_process` on a helper thread, without a shell, and
/// reads the keys that it writes (JSON, `"Version": 1`). `told_by` is the profile, for messages.
/// Errors name the profile and how the program has ended, and nothing that it says: those of
/// `run_child`; `access_denied` where it fails, or writes keys that have run out; `protocol_error`
/// where it writes none.
[[nodiscard]] task<result<aws_keys>> keys_of_process(
    aws_search search, std::string command, std::string told_by,
    std::chrono::milliseconds limit = std::chrono::seconds(60));

}  // namespace headrace
