#include "call.hpp"
#include "errors.hpp"
#include "log_lines.hpp"
#include "model_object.hpp"
#include "program.hpp"
#include "stream_object.hpp"
#include "tensor_object.hpp"

#include <headrace/base/sizes.hpp>

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <vector>

namespace {

/// Blocks, without the GIL, until the command is done.
int run_command_line(const std::vector<std::string>& arguments) {
  std::vector<const char*> words;
  words.reserve(arguments.size() + 1);
  for (const std::string& argument : arguments) words.push_back(argument.c_str());
  words.push_back(nullptr);
  return headrace::cli::run_program(static_cast<int>(arguments.size()), words.data());
}

}  // namespace

NB_MODULE(_core, module) {
  // The interpreter may end while streams, and objects of theirs, are still there.
  nanobind::set_leak_warnings(false);
  module.doc() = "The engine of headrace. Private: use the package `headrace`.";
  module.attr("version") = HEADRACE_VERSION;
  module.def("parse_size",
             [](const std::string& text) { return headrace::parse_size(text).value(); });
  module.def("run_command_line", &run_command_line,
             nanobind::call_guard<nanobind::gil_scoped_release>());
  headrace::python::translate_errors();
  headrace::python::bind_log(module);
  headrace::python::bind_calls(module);
  headrace::python::bind_tensor(module);
  headrace::python::bind_stream(module);
  headrace::python::bind_model(module);
}
