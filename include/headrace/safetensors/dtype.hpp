#pragma once

#include <headrace/base/export.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace headrace {

/// The type of a tensor's elements: all that the safetensors format knows, in its order (by
/// alignment).
///
/// Elements are little-endian. `f4` and the two `f6` are packed: a tensor of them takes `elements *
/// bits / 8` bytes, and the format refuses one whose bits do not end on a byte.
enum class dtype : std::uint8_t {
  boolean,      ///< `BOOL`, one byte each
  f4,           ///< `F4`, two to a byte (OCP MXFP4, E2M1)
  f6_e2m3,      ///< `F6_E2M3`, four to three bytes
  f6_e3m2,      ///< `F6_E3M2`, four to three bytes
  u8,           ///< `U8`
  i8,           ///< `I8`
  f8_e5m2,      ///< `F8_E5M2`
  f8_e4m3,      ///< `F8_E4M3`: torch's `float8_e4m3fn`
  f8_e8m0,      ///< `F8_E8M0`: a scale, an exponent alone
  f8_e4m3fnuz,  ///< `F8_E4M3FNUZ`
  f8_e5m2fnuz,  ///< `F8_E5M2FNUZ`
  i16,          ///< `I16`
  u16,          ///< `U16`
  f16,          ///< `F16`, IEEE half
  bf16,         ///< `BF16`
  i32,          ///< `I32`
  u32,          ///< `U32`
  f32,          ///< `F32`
  c64,          ///< `C64`, two `F32`
  f64,          ///< `F64`
  i64,          ///< `I64`
  u64,          ///< `U64`
};

namespace detail {

struct dtype_properties {
  std::string_view name;
  unsigned bits;
};

inline constexpr std::array<dtype_properties, 22> dtypes = {{
    {"BOOL", 8},        {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},
    {"I8", 8},          {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8},
    {"F8_E5M2FNUZ", 8}, {"I16", 16},    {"U16", 16},    {"F16", 16},    {"BF16", 16},
    {"I32", 32},        {"U32", 32},    {"F32", 32},    {"C64", 64},    {"F64", 64},
    {"I64", 64},        {"U64", 64},
}};

}  // namespace detail

/// How many dtypes there are: `static_cast<dtype>(0)` to `static_cast<dtype>(dtype_count - 1)`.
inline constexpr std::size_t dtype_count = detail::dtypes.size();

/// The size of one element in bits: 4, 6, 8, 16, 32 or 64.
[[nodiscard]] constexpr unsigned bits(dtype type) noexcept {
  return detail::dtypes[static_cast<std::size_t>(type)].bits;
}

/// The name as a header writes it: `BF16`.
[[nodiscard]] constexpr std::string_view to_string(dtype type) noexcept {
  return detail::dtypes[static_cast<std::size_t>(type)].name;
}

/// The dtype of that name, exactly as the format spells it (`BF16`, not `bf16`); nothing where
/// there is none.
///
///     if (auto type = parse_dtype("BF16")) …
[[nodiscard]] HEADRACE_API std::optional<dtype> parse_dtype(std::string_view name) noexcept;

}  // namespace headrace
