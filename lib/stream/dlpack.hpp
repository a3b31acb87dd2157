#pragma once

#include <cstdint>

// The C structures of DLPack 1.1 (https://dmlc.github.io/dlpack/latest/c_api.html): an ABI, fixed
// by its specification. Private to headrace: users bring their own dlpack.h.

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

namespace headrace::dlpack {

inline constexpr std::int32_t device_cpu = 1;
inline constexpr std::int32_t device_cuda = 2;
enum type_code : std::uint8_t {
  type_int = 0,
  type_uint = 1,
  type_float = 2,
  type_bfloat = 4,
  type_complex = 5,
  type_bool = 6,
  // From 1.1 on.
  type_float8_e4m3fn = 10,
  type_float8_e4m3fnuz = 11,
  type_float8_e5m2 = 12,
  type_float8_e5m2fnuz = 13,
  type_float8_e8m0fnu = 14,
};

}  // namespace headrace::dlpack
