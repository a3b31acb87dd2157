#pragma once

#include <headrace/base/error.hpp>

#include <nanobind/nanobind.h>

namespace headrace::python {

/// The exception of `headrace._errors` that says the same. Needs the GIL.
[[nodiscard]] nanobind::object to_exception(const error& failed);

/// Has `headrace::error` become that exception wherever a bound function throws it.
void translate_errors();

}  // namespace headrace::python
