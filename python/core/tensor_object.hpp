#pragma once

#include <headrace/stream/tensor.hpp>

#include <nanobind/nanobind.h>

#include <memory>

namespace headrace::python {

/// A tensor in Python's hands. What it exports shares its memory, which lives as long as any of
/// them.
struct tensor_object {
  std::shared_ptr<tensor> held;
  bool raw = false;  ///< Shows itself as a vector of bytes.
};

void bind_tensor(nanobind::module_& module);

}  // namespace headrace::python
