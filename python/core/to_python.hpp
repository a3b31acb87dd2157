#pragma once

#include "tensor_object.hpp"

#include <headrace/storage/object_entry.hpp>
#include <headrace/stream/model.hpp>

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace headrace::python {

/// What Python sees of what the engine gives. All need the GIL.
[[nodiscard]] nanobind::object text_to_python(std::string_view text);
[[nodiscard]] nanobind::object shape_to_python(std::span<const std::uint64_t> shape);
[[nodiscard]] nanobind::object to_python(model opened);
[[nodiscard]] nanobind::object to_python(std::optional<tensor> arrived);
[[nodiscard]] nanobind::object to_python(std::vector<std::byte> bytes);
[[nodiscard]] nanobind::object to_python(std::vector<object_entry> entries);

}  // namespace headrace::python
