#pragma once

#include <headrace/device/device.hpp>
#include <headrace/device/staging_pool.hpp>
#include <headrace/stream/model.hpp>

#include <stdexcept>
#include <string>
#include <variant>
#include <vector>

namespace headrace::cli {

/// What every command takes: which model, and how to reach it.
struct source_arguments {
  std::string uri;
  open_options opening;
  unsigned threads = 0;
  int verbosity = 0;  ///< -1: errors alone; 1: log lines; 2: all of them.
};

struct stream_arguments {
  source_arguments source;
  headrace::device device;
  staging_options staging;
  std::size_t memory_limit = 1_GiB;
  std::vector<std::string> include;  ///< Globs; none: everything.
  std::vector<std::string> exclude;
  bool digest = false;
  std::string stats_file;  ///< `-`: standard output; empty: none.
  std::string trace_file;  ///< Empty: none.
  unsigned repeat = 0;     ///< 0: once, and figures that are no array.
};

struct inspect_arguments {
  source_arguments source;
  bool json = false;
};

struct ls_arguments {
  source_arguments source;
};

struct credentials_arguments {
  source_arguments source;
  bool json = false;
};

/// `--help`, `--version`: a text for standard output.
struct shown_text {
  std::string text;
};

/// A command line, or its environment, that cannot be: exit 2.
class usage_error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Reads the command line and `HEADRACE_<OPTION>` for what it does not set. Throws `usage_error`.
[[nodiscard]] std::variant<shown_text, stream_arguments, inspect_arguments, ls_arguments,
                           credentials_arguments>
parse_command_line(int argc, const char* const* argv);

}  // namespace headrace::cli
