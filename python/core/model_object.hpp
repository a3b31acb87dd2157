#pragma once

#include <nanobind/nanobind.h>

namespace headrace::python {

/// `open`, `Model` and the options that they take.
void bind_model(nanobind::module_& module);

}  // namespace headrace::python
