#include "stream/dlpack.hpp"

#include <headrace/base/error.hpp>
#include <headrace/stream/tensor.hpp>

#include <limits>
#include <memory>
#include <string>

namespace headrace {
namespace {

constexpr std::uint16_t one_lane = 1;

DLDataType type_of(headrace::dtype type) {
  const auto make = [type](std::uint8_t code) {
    return DLDataType{code, static_cast<std::uint8_t>(bits(type)), one_lane};
  };
  switch (type) {
    case dtype::boolean:
      return make(dlpack::type_bool);
    case dtype::i8:
    case dtype::i16:
    case dtype::i32:
    case dtype::i64:
      return make(dlpack::type_int);
    case dtype::u8:
    case dtype::u16:
    case dtype::u32:
    case dtype::u64:
      return make(dlpack::type_uint);
    case dtype::f16:
    case dtype::f32:
    case dtype::f64:
      return make(dlpack::type_float);
    case dtype::bf16:
      return make(dlpack::type_bfloat);
    case dtype::c64:
      return make(dlpack::type_complex);
    case dtype::f8_e5m2:
      return make(dlpack::type_float8_e5m2);
    case dtype::f8_e4m3:
      return make(dlpack::type_float8_e4m3fn);
    case dtype::f8_e8m0:
      return make(dlpack::type_float8_e8m0fnu);
    case dtype::f8_e4m3fnuz:
      return make(dlpack::type_float8_e4m3fnuz);
    case dtype::f8_e5m2fnuz:
      return make(dlpack::type_float8_e5m2fnuz);
    case dtype::f4:
    case dtype::f6_e2m3:
    case dtype::f6_e3m2:
      break;
  }
  throw error(errc::unsupported, "DLPack has no packed type for " + std::string(to_string(type)));
}

/// The exported structure with everything that it points to.
template <class Managed>
struct exported {
  Managed managed{};
  tensor owner;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;

  static void destroy(Managed* managed) { delete static_cast<exported*>(managed->manager_ctx); }
};

template <class Managed>
Managed* export_tensor(tensor&& from) {
  const DLDataType type = type_of(from.dtype());
  auto made = std::make_unique<exported<Managed>>();
  std::int64_t stride = 1;
  made->shape.resize(from.shape().size());
  made->strides.resize(from.shape().size());
  for (std::size_t at = from.shape().size(); at-- > 0;) {
    // A shape with a zero extent may hold others beyond 2^63; nothing else can, since the bytes are
    // in memory.
    if (from.shape()[at] > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      throw error(errc::unsupported,
                  "DLPack cannot express an extent of " + std::to_string(from.shape()[at]));
    }
    made->shape[at] = static_cast<std::int64_t>(from.shape()[at]);
    made->strides[at] = stride;
    if (__builtin_mul_overflow(stride, made->shape[at], &stride)) stride = 0;
  }
  made->owner = std::move(from);
  DLTensor& description = made->managed.dl_tensor;
  description.data = made->owner.bytes().data();
  const device where = made->owner.device();
  description.device = {where.kind == device::type::cuda ? dlpack::device_cuda : dlpack::device_cpu,
                        static_cast<std::int32_t>(where.index)};
  description.ndim = static_cast<std::int32_t>(made->shape.size());
  description.dtype = type;
  description.shape = made->shape.data();
  description.strides = made->strides.data();
  made->managed.deleter = &exported<Managed>::destroy;
  made->managed.manager_ctx = made.get();
  return &made.release()->managed;
}

}  // namespace

DLManagedTensorVersioned* tensor::to_dlpack() && {
  auto* const managed = export_tensor<DLManagedTensorVersioned>(std::move(*this));
  managed->version = {1, 1};
  return managed;
}

DLManagedTensor* tensor::to_dlpack_legacy() && {
  return export_tensor<DLManagedTensor>(std::move(*this));
}

}  // namespace headrace
