#pragma once

#include "tensor_object.hpp"

namespace headrace::python {

/// A `dltensor` capsule, or a `dltensor_versioned` one, over the memory of `from`. The consumer may
/// call its deleter on any thread, without the GIL. Throws `unsupported`, naming the tensor, where
/// DLPack has no such type. Needs the GIL.
[[nodiscard]] nanobind::object to_capsule(const tensor_object& from, bool versioned);

/// `(device type, device number)` as DLPack numbers them.
[[nodiscard]] nanobind::object dlpack_device(const tensor_object& of);

}  // namespace headrace::python
