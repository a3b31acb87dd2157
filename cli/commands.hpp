#pragma once

#include "command_line.hpp"

#include <stop_token>

namespace headrace::cli {

// The commands. Each blocks until it is done, writes to standard output only once all has
// succeeded, and throws `headrace::error` where it has not; `cancelled` after a stop.

void run_stream(const stream_arguments& arguments, std::stop_token stop);
void run_inspect(const inspect_arguments& arguments, std::stop_token stop);
void run_credentials(const credentials_arguments& arguments, std::stop_token stop);
void run_ls(const ls_arguments& arguments, std::stop_token stop);

}  // namespace headrace::cli
