#include "dlpack.hpp"

#include <headrace/base/error.hpp>

#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

// The C structures of DLPack 1.1 (https://dmlc.github.io/dlpack/latest/c_api.html): an ABI, fixed
// by its specification. `tensor::to_dlpack` gives a tensor away; here several exports share one.
// NOLINTBEGIN(readability-identifier-naming)

struct DLDevice {
  std::int32_t device_type;
  std::int32_t device_id;
};

struct DLDataType {
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
};

struct DLTensor {
  void* data;
  DLDevice device;
  std::int32_t ndim;
  DLDataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;
  std::uint64_t byte_offset;
};

struct DLManagedTensor {
  DLTensor dl_tensor;
  void* manager_ctx;
  void (*deleter)(DLManagedTensor* self);
};

struct DLPackVersion {
  std::uint32_t major;
  std::uint32_t minor;
};

struct DLManagedTensorVersioned {
  DLPackVersion version;
  void* manager_ctx;
  void (*deleter)(DLManagedTensorVersioned* self);
  std::uint64_t flags;
  DLTensor dl_tensor;
};

// NOLINTEND(readability-identifier-naming)

namespace headrace::python {

namespace nb = nanobind;

namespace {

constexpr DLPackVersion version{1, 1};

std::optional<std::uint8_t> code_of(dtype type) noexcept {
  switch (type) {
    case dtype::i8:
    case dtype::i16:
    case dtype::i32:
    case dtype::i64:
      return 0;
    case dtype::u8:
    case dtype::u16:
    case dtype::u32:
    case dtype::u64:
      return 1;
    case dtype::f16:
    case dtype::f32:
    case dtype::f64:
      return 2;
    case dtype::bf16:
      return 4;
    case dtype::c64:
      return 5;
    case dtype::boolean:
      return 6;
    case dtype::f8_e4m3:
      return 10;
    case dtype::f8_e4m3fnuz:
      return 11;
    case dtype::f8_e5m2:
      return 12;
    case dtype::f8_e5m2fnuz:
      return 13;
    case dtype::f8_e8m0:
      return 14;
    case dtype::f4:
    case dtype::f6_e2m3:
    case dtype::f6_e3m2:
      break;
  }
  return std::nullopt;
}

DLDevice device_of(const tensor& of) noexcept {
  const headrace::device where = of.device();
  return {where.kind == device::type::cuda ? 2 : 1, static_cast<std::int32_t>(where.index)};
}

DLDataType type_of(const tensor_object& of) {
  if (of.raw) return {1, 8, 1};
  const dtype type = of.held->dtype();
  const auto code = code_of(type);
  if (!code) {
    throw error(errc::unsupported,
                "tensor '" + std::string(of.held->name()) + "': DLPack has no packed type for " +
                    std::string(to_string(type)) + "; its bytes can be had by .raw");
  }
  return {*code, static_cast<std::uint8_t>(bits(type)), 1};
}

template <class Managed>
struct exported {
  Managed managed{};
  std::shared_ptr<tensor> owner;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;

  static void destroy(Managed* managed) { delete static_cast<exported*>(managed->manager_ctx); }
};

std::vector<std::int64_t> shape_of(const tensor_object& of) {
  if (of.raw) return {static_cast<std::int64_t>(of.held->bytes().size())};
  std::vector<std::int64_t> shape;
  for (const std::uint64_t extent : of.held->shape()) {
    // Only beside a zero extent: the bytes are in memory.
    if (extent > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      throw error(errc::unsupported, "tensor '" + std::string(of.held->name()) +
                                         "': DLPack cannot express an extent of " +
                                         std::to_string(extent));
    }
    shape.push_back(static_cast<std::int64_t>(extent));
  }
  return shape;
}

template <class Managed>
Managed* export_tensor(const tensor_object& from) {
  auto made = std::make_unique<exported<Managed>>();
  DLTensor& description = made->managed.dl_tensor;
  description.dtype = type_of(from);
  made->shape = shape_of(from);
  made->strides.resize(made->shape.size());
  std::int64_t stride = 1;
  for (std::size_t at = made->shape.size(); at-- > 0;) {
    made->strides[at] = stride;
    if (__builtin_mul_overflow(stride, made->shape[at], &stride)) stride = 0;
  }
  made->owner = from.held;
  description.data = made->owner->bytes().data();
  description.device = device_of(*made->owner);
  description.ndim = static_cast<std::int32_t>(made->shape.size());
  description.shape = made->shape.data();
  description.strides = made->strides.data();
  made->managed.deleter = &exported<Managed>::destroy;
  made->managed.manager_ctx = made.get();
  return &made.release()->managed;
}

/// A consumer renames the capsule that it takes; one that nobody took still owns its tensor.
template <class Managed>
nb::object capsule_of(Managed* managed, const char* name) {
  PyObject* const made = PyCapsule_New(managed, name, [](PyObject* capsule) {
    const char* const named = PyCapsule_GetName(capsule);
    if (named == nullptr || std::string_view(named).starts_with("used_")) return;
    auto* const kept = static_cast<Managed*>(PyCapsule_GetPointer(capsule, named));
    if (kept != nullptr) kept->deleter(kept);
  });
  if (made == nullptr) {
    managed->deleter(managed);
    throw nb::python_error();
  }
  return nb::steal(made);
}

}  // namespace

nb::object to_capsule(const tensor_object& from, bool versioned) {
  if (!versioned) return capsule_of(export_tensor<DLManagedTensor>(from), "dltensor");
  auto* const managed = export_tensor<DLManagedTensorVersioned>(from);
  managed->version = version;
  return capsule_of(managed, "dltensor_versioned");
}

nb::object dlpack_device(const tensor_object& of) {
  const DLDevice where = device_of(*of.held);
  return nb::make_tuple(where.device_type, where.device_id);
}

}  // namespace headrace::python
