#include "commands.hpp"
#include "output.hpp"
#include "text.hpp"

#include <headrace/headrace.hpp>

#include <string>
#include <utility>

namespace headrace::cli {

void run_ls(const ls_arguments& arguments, std::stop_token stop) {
  runtime engine({.threads = arguments.source.threads});
  const model opened =
      sync_wait(open(engine, arguments.source.uri, arguments.source.opening), std::move(stop));
  std::string lines;
  for (const file_info& file : opened.files()) {
    lines += std::to_string(file.bytes) + "  " + printable_name(file.name) + "\n";
  }
  write_standard_output(lines);
}

}  // namespace headrace::cli
