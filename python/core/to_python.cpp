#include "to_python.hpp"

#include <memory>
#include <utility>

namespace headrace::python {

namespace nb = nanobind;

nb::object text_to_python(std::string_view text) {
  // Names of files need not be UTF-8; Python has a way to write the others, and to read them back.
  PyObject* const made =
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "surrogateescape");
  if (made == nullptr) throw nb::python_error();
  return nb::steal(made);
}

nb::object shape_to_python(std::span<const std::uint64_t> shape) {
  PyObject* const made = PyTuple_New(static_cast<Py_ssize_t>(shape.size()));
  if (made == nullptr) throw nb::python_error();
  const nb::object kept = nb::steal(made);
  for (std::size_t at = 0; at < shape.size(); ++at) {
    PyObject* const extent = PyLong_FromUnsignedLongLong(shape[at]);
    if (extent == nullptr) throw nb::python_error();
    PyTuple_SET_ITEM(made, static_cast<Py_ssize_t>(at), extent);
  }
  return kept;
}

nb::object to_python(model opened) { return nb::cast(std::move(opened)); }

nb::object to_python(std::optional<tensor> arrived) {
  if (!arrived) return nb::none();
  return nb::cast(tensor_object{std::make_shared<tensor>(std::move(*arrived))});
}

nb::object to_python(std::vector<std::byte> bytes) {
  return nb::bytes(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

nb::object to_python(std::vector<object_entry> entries) {
  nb::list made;
  for (const object_entry& entry : entries)
    made.append(nb::make_tuple(text_to_python(entry.name), entry.size));
  return made;
}

}  // namespace headrace::python
