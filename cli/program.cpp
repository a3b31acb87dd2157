#include "program.hpp"

#include "command_line.hpp"
#include "commands.hpp"
#include "interrupts.hpp"
#include "output.hpp"
#include "standard_error.hpp"

#include <headrace/base/error.hpp>
#include <headrace/base/log.hpp>

#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <exception>
#include <new>
#include <string>
#include <system_error>
#include <type_traits>
#include <utility>
#include <variant>

namespace headrace::cli {
namespace {

constexpr int failed = 1;
constexpr int misused = 2;

// Started with a closed standard stream, the first file or socket would take its number. Writing to
// the stand-in is an error, as writing to the closed stream would be.
void fill_standard_streams() {
  int opened = STDIN_FILENO;
  while (opened >= 0 && opened <= STDERR_FILENO) opened = ::open("/dev/null", O_RDONLY);
  if (opened > STDERR_FILENO) close(opened);
}

std::string_view name_of(log_level level) {
  switch (level) {
    case log_level::debug:
      return "debug";
    case log_level::info:
      return "info";
    case log_level::warning:
      return "warning";
    default:
      return "error";
  }
}

void set_verbosity(int verbosity) {
  if (verbosity < 1) return;
  set_log_sink(
      [](log_level level, std::string_view line) {
        standard_error::get().line("[" + std::string(name_of(level)) + "] " + std::string(line));
      },
      verbosity == 1 ? log_level::info : log_level::debug);
}

int complain(const std::string& what) {
  standard_error::get().line("headrace: " + what);
  return failed;
}

int complain(errc kind, const std::string& what) {
  return complain(std::string(to_string(kind)) + ": " + what);
}

// The error line for what is being handled.
int complain_of_exception() {
  try {
    throw;
  } catch (const error& wrong) {
    return complain(wrong.what());
  } catch (const std::bad_alloc&) {
    return complain(errc::out_of_memory, "memory could not be had");
  } catch (const std::system_error& wrong) {
    return complain(system_failure(wrong.code(), "a system call failed").what());
  } catch (const std::exception& wrong) {
    return complain(errc::internal, wrong.what());
  }
}

void run(const stream_arguments& arguments, std::stop_token stop) {
  run_stream(arguments, std::move(stop));
}
void run(const inspect_arguments& arguments, std::stop_token stop) {
  run_inspect(arguments, std::move(stop));
}
void run(const ls_arguments& arguments, std::stop_token stop) {
  run_ls(arguments, std::move(stop));
}

void run(const credentials_arguments& arguments, std::stop_token stop) {
  run_credentials(arguments, std::move(stop));
}

template <class Arguments>
int run_command(const Arguments& arguments) {
  interrupts interrupted;
  set_verbosity(arguments.source.verbosity);
  int status = EXIT_SUCCESS;
  try {
    run(arguments, interrupted.token());
  } catch (...) {
    if (const int signal = interrupted.signal(); signal != 0) {
      // Whatever it was that failed: it was told to stop.
      complain(errc::cancelled, signal == SIGINT ? "interrupted" : "terminated");
      status = 128 + signal;
    } else {
      status = complain_of_exception();
    }
  }
  set_log_sink({}, log_level::off);
  return status;
}

int show(const shown_text& shown) {
  std::signal(SIGPIPE, SIG_IGN);
  write_standard_output(shown.text);
  return EXIT_SUCCESS;
}

}  // namespace

int run_program(int argc, const char* const* argv) {
  fill_standard_streams();
  try {
    const auto parsed = parse_command_line(argc, argv);
    return std::visit(
        [](const auto& asked) {
          if constexpr (std::is_same_v<std::decay_t<decltype(asked)>, shown_text>) {
            return show(asked);
          } else {
            return run_command(asked);
          }
        },
        parsed);
  } catch (const usage_error& wrong) {
    complain("usage: " + std::string(wrong.what()));
    return misused;
  } catch (...) {
    return complain_of_exception();
  }
}

}  // namespace headrace::cli
