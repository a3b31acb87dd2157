#include "model_object.hpp"

#include "call.hpp"
#include "engine.hpp"
#include "stream_object.hpp"

#include <headrace/coro/with.hpp>

#include <fnmatch.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <tuple>
#include <utility>

namespace headrace::python {
namespace {

std::string from_python(const nb::bytes& text) { return {text.c_str(), text.size()}; }

/// Keeps the runtime, whose handle `open` takes by reference.
task<model> open_with(std::shared_ptr<runtime> with, std::string uri, open_options options) {
  auto opening = open(*with, std::move(uri), std::move(options));
  model opened = co_await std::move(opening);
  co_return opened;
}

nb::object open_model(const nb::bytes& uri, const open_options& options, unsigned threads,
                      std::shared_ptr<event_executor> on) {
  return begin(std::move(on), open_with(engine(threads), from_python(uri), options));
}

using python_selection =
    std::pair<std::string, std::vector<std::pair<std::uint64_t, std::uint64_t>>>;

stream_object start_stream(const model& from, const std::string& device, std::size_t memory_limit,
                           bool in_order, const std::vector<python_selection>& tensors) {
  stream_options options;
  options.device = parse_device(device).value();
  options.memory_limit = memory_limit;
  options.order = in_order ? delivery::requested : delivery::completion;
  for (const auto& [name, extents] : tensors) {
    selection wanted{name};
    for (const auto& [first, last] : extents) wanted.slice.push_back({first, last});
    options.tensors.push_back(std::move(wanted));
  }
  return {from, std::move(options)};
}

nb::object tensors_of(const model& of) {
  const auto files = of.files();
  nb::list made;
  for (const tensor_info& info : of.tensors()) {
    made.append(nb::make_tuple(text_to_python(info.name), text_to_python(to_string(info.dtype)),
                               shape_to_python(info.shape), info.size(),
                               text_to_python(files[info.file].name)));
  }
  return made;
}

nb::object files_of(const model& of) {
  nb::list made;
  for (const file_info& file : of.files()) {
    nb::dict metadata;
    for (const auto& [name, value] : file.metadata)
      metadata[text_to_python(name)] = text_to_python(value);
    made.append(nb::make_tuple(text_to_python(file.name), file.bytes, metadata));
  }
  return made;
}

nb::object statistics_of(const model& of) {
  const model_statistics found = of.statistics();
  return nb::make_tuple(found.requests, found.retries, found.bytes);
}

bool matches(const std::string& glob, std::string name) {
  // fnmatch reads C strings, and a name may hold a NUL: any other character stands for it.
  std::replace(name.begin(), name.end(), '\0', '\1');
  return fnmatch(glob.c_str(), name.c_str(), 0) == 0;
}

template <std::chrono::milliseconds open_options::* limit>
void bind_limit(nb::class_<open_options>& options, const char* name) {
  options.def_prop_rw(
      name,
      [](const open_options& self) { return std::chrono::duration<double>(self.*limit).count(); },
      [](open_options& self, double seconds) {
        // Beyond a year: for ever, and no overflow.
        constexpr double year = 365 * 86'400.0;
        self.*limit = std::chrono::ceil<std::chrono::milliseconds>(
            std::chrono::duration<double>(std::clamp(seconds, -1.0, year)));
      });
}

void bind_options(nb::module_& module) {
  nb::class_<aws_credentials>(module, "AwsCredentials")
      .def(nb::init<>())
      .def_rw("access_key_id", &aws_credentials::access_key_id)
      .def_rw("secret_access_key", &aws_credentials::secret_access_key)
      .def_rw("session_token", &aws_credentials::session_token);

  nb::class_<storage_options>(module, "StorageOptions")
      .def(nb::init<>())
      .def_rw("endpoint", &storage_options::endpoint)
      .def_rw("region", &storage_options::region)
      .def_rw("path_style", &storage_options::path_style, nb::arg().none())
      .def_rw("anonymous", &storage_options::anonymous)
      .def_rw("credentials", &storage_options::credentials, nb::arg().none())
      .def_rw("profile", &storage_options::profile)
      .def_rw("requester_pays", &storage_options::requester_pays)
      .def_rw("token", &storage_options::token)
      .def_rw("account", &storage_options::account)
      .def_rw("ca_file", &storage_options::ca_file)
      .def_rw("certificate_file", &storage_options::certificate_file)
      .def_rw("key_file", &storage_options::key_file)
      .def_rw("verify_tls", &storage_options::verify_tls)
      .def_rw("headers", &storage_options::headers);

  nb::class_<open_options> options(module, "OpenOptions");
  options.def(nb::init<>())
      .def_rw("storage", &open_options::storage)
      .def_rw("chunk_size", &open_options::chunk_size)
      .def_rw("max_concurrency", &open_options::max_concurrency)
      .def_rw("retries", &open_options::retries);
  bind_limit<&open_options::connect_limit>(options, "connect_timeout");
  bind_limit<&open_options::stall_limit>(options, "stall_timeout");
  bind_limit<&open_options::deadline>(options, "deadline");
}

}  // namespace

void bind_model(nb::module_& module) {
  bind_options(module);
  module.def("open", &open_model, nb::arg("uri"), nb::arg("options"), nb::arg("threads"),
             nb::arg("executor").none() = nb::none());
  module.def("matches", &matches, nb::arg("glob"), nb::arg("name"));
  module.def("shut_down", &shut_down);

  nb::class_<model>(module, "Model", "An opened checkpoint.")
      .def_prop_ro("uri", [](const model& self) { return text_to_python(self.uri()); })
      .def_prop_ro("total_bytes", &model::total_bytes)
      .def("tensors", &tensors_of)
      .def("files", &files_of)
      .def("statistics", &statistics_of)
      .def("stream", &start_stream, nb::arg("device"), nb::arg("memory_limit"), nb::arg("in_order"),
           nb::arg("tensors"))
      .def(
          "read_file",
          [](const model& self, const nb::bytes& name, std::shared_ptr<event_executor> on) {
            return begin(std::move(on), self.read_file(from_python(name)));
          },
          nb::arg("name"), nb::arg("executor").none() = nb::none())
      .def(
          "list_files",
          [](const model& self, std::shared_ptr<event_executor> on) {
            return begin(std::move(on), self.list_files());
          },
          nb::arg("executor").none() = nb::none());
}

}  // namespace headrace::python
