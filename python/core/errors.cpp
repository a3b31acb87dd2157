#include "errors.hpp"

#include <exception>
#include <string>
#include <system_error>

namespace headrace::python {

namespace nb = nanobind;

nb::object to_exception(const error& failed) {
  const error_context& context = failed.context();
  nb::object bytes = nb::none();
  if (context.range) bytes = nb::make_tuple(context.range->begin, context.range->end());
  const auto text = [](const std::string& value) -> nb::object {
    // What a server has sent need not be UTF-8.
    PyObject* const decoded =
        PyUnicode_DecodeUTF8(value.data(), static_cast<Py_ssize_t>(value.size()), "replace");
    if (decoded == nullptr) throw nb::python_error();
    return nb::steal(decoded);
  };
  const std::string kind(to_string(failed.kind()));
  return nb::module_::import_("headrace._errors")
      .attr("from_engine")(text(kind), text(failed.message()), text(context.uri), bytes,
                           context.attempt, text(context.peer), context.status,
                           text(context.server_code), text(context.request_id));
}

void translate_errors() {
  nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    const auto raise = [](const error& failed) {
      try {
        const nb::object exception = to_exception(failed);
        PyErr_SetObject(exception.type().ptr(), exception.ptr());
      } catch (nb::python_error& wrong) {
        wrong.restore();
      }
    };
    try {
      std::rethrow_exception(thrown);
    } catch (const error& failed) {
      raise(failed);
    } catch (const std::system_error& failed) {
      raise(system_failure(failed.code(), "a system call failed"));
    }
  });
}

}  // namespace headrace::python
