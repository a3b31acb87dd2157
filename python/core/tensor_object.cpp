#include "tensor_object.hpp"

#include "dlpack.hpp"
#include "to_python.hpp"

#include <headrace/base/error.hpp>

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <optional>
#include <string>
#include <utility>

namespace headrace::python {

namespace nb = nanobind;

namespace {

std::string_view dtype_of(const tensor_object& of) noexcept {
  return to_string(of.raw ? dtype::u8 : of.held->dtype());
}

nb::object shape_of(const tensor_object& of) {
  if (of.raw) return nb::make_tuple(of.held->bytes().size());
  return shape_to_python(of.held->shape());
}

nb::object export_dlpack(const tensor_object& self, const nb::object& stream,
                         std::optional<std::pair<int, int>> max_version,
                         const nb::object& dl_device, std::optional<bool> copy) {
  static_cast<void>(stream);  // a tensor is complete before anybody has it
  const auto refuse = [](const char* why) {
    PyErr_SetString(PyExc_BufferError, why);
    throw nb::python_error();
  };
  if (copy.value_or(false)) refuse("headrace hands its memory over and makes no copies");
  if (!dl_device.is_none() && !dl_device.equal(dlpack_device(self)))
    refuse("headrace does not move tensors between devices: stream to that device instead");
  return to_capsule(self, max_version && max_version->first >= 1);
}

std::string describe(const tensor_object& self) {
  return nb::cast<std::string>(nb::str("Tensor(name={!r}, dtype={!r}, shape={!r}, nbytes={!r})")
                                   .format(text_to_python(self.held->name()),
                                           text_to_python(dtype_of(self)), shape_of(self),
                                           self.held->bytes().size()));
}

int get_buffer(PyObject* self, Py_buffer* view, int flags) noexcept {
  static char nothing = 0;
  const auto& object = *nb::inst_ptr<tensor_object>(self);
  const auto bytes = object.held->bytes();
  if (object.held->device().kind != device::type::cpu) {
    PyErr_SetString(PyExc_BufferError, "the tensor is not in host memory");
    view->obj = nullptr;
    return -1;
  }
  void* const data = bytes.empty() ? static_cast<void*>(&nothing) : bytes.data();
  return PyBuffer_FillInfo(view, self, data, static_cast<Py_ssize_t>(bytes.size()), 0, flags);
}

PyType_Slot slots[] = {  // NOLINT(*-avoid-c-arrays): what Python's C interface takes
    {Py_bf_getbuffer, reinterpret_cast<void*>(&get_buffer)},
    {0, nullptr}};

}  // namespace

void bind_tensor(nb::module_& module) {
  nb::class_<tensor_object>(
      module, "Tensor", nb::type_slots(slots),
      "A tensor that has arrived, and the memory with its bytes, which it owns.\n\n"
      "Row-major, dense and little-endian. Any library that speaks DLPack takes it without a copy\n"
      "(`numpy.from_dlpack(t)`, `torch.from_dlpack(t)`, `jax.dlpack.from_dlpack(t)`), and\n"
      "`memoryview(t)` gives its bytes. What was made of it shares its memory and may outlive it.")
      .def_prop_ro(
          "name", [](const tensor_object& self) { return text_to_python(self.held->name()); },
          "The name in the checkpoint.")
      .def_prop_ro(
          "dtype", [](const tensor_object& self) { return text_to_python(dtype_of(self)); },
          "The dtype as safetensors writes it: 'BF16'.")
      .def_prop_ro("shape", &shape_of, "Extents, the slowest first.")
      .def_prop_ro(
          "nbytes", [](const tensor_object& self) { return self.held->bytes().size(); },
          "Bytes of all elements.")
      .def_prop_ro(
          "raw", [](const tensor_object& self) { return tensor_object{self.held, true}; },
          "The same memory as a one-dimensional tensor of U8: for dtypes that a library lacks.")
      .def("__dlpack__", &export_dlpack, nb::kw_only(), nb::arg("stream") = nb::none(),
           nb::arg("max_version") = nb::none(), nb::arg("dl_device") = nb::none(),
           nb::arg("copy") = nb::none())
      .def("__dlpack_device__", &dlpack_device)
      .def("__repr__", &describe);
}

}  // namespace headrace::python
