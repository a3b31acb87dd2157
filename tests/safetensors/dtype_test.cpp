#include <headrace/safetensors/dtype.hpp>

#include <doctest/doctest.h>

#include <array>
#include <string>
#include <utility>

using namespace headrace;

TEST_SUITE("unit") {
  TEST_CASE("every dtype of the format has its name and its size in bits") {
    constexpr std::array<std::pair<std::string_view, unsigned>, 22> expected = {{
        {"BOOL", 8},        {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},
        {"I8", 8},          {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8},
        {"F8_E5M2FNUZ", 8}, {"I16", 16},    {"U16", 16},    {"F16", 16},    {"BF16", 16},
        {"I32", 32},        {"U32", 32},    {"F32", 32},    {"C64", 64},    {"F64", 64},
        {"I64", 64},        {"U64", 64},
    }};
    REQUIRE(dtype_count == expected.size());
    for (const auto& [name, size] : expected) {
      CAPTURE(std::string(name));
      const auto type = parse_dtype(name);
      REQUIRE(type);
      CHECK(to_string(*type) == name);
      CHECK(bits(*type) == size);
    }
  }

  TEST_CASE("the enumerators stand for the dtypes that they are named after") {
    constexpr std::array<std::pair<dtype, std::string_view>, 22> expected = {{
        {dtype::boolean, "BOOL"},
        {dtype::f4, "F4"},
        {dtype::f6_e2m3, "F6_E2M3"},
        {dtype::f6_e3m2, "F6_E3M2"},
        {dtype::u8, "U8"},
        {dtype::i8, "I8"},
        {dtype::f8_e5m2, "F8_E5M2"},
        {dtype::f8_e4m3, "F8_E4M3"},
        {dtype::f8_e8m0, "F8_E8M0"},
        {dtype::f8_e4m3fnuz, "F8_E4M3FNUZ"},
        {dtype::f8_e5m2fnuz, "F8_E5M2FNUZ"},
        {dtype::i16, "I16"},
        {dtype::u16, "U16"},
        {dtype::f16, "F16"},
        {dtype::bf16, "BF16"},
        {dtype::i32, "I32"},
        {dtype::u32, "U32"},
        {dtype::f32, "F32"},
        {dtype::c64, "C64"},
        {dtype::f64, "F64"},
        {dtype::i64, "I64"},
        {dtype::u64, "U64"},
    }};
    for (const auto& [type, name] : expected) CHECK(to_string(type) == name);
  }

  TEST_CASE("a dtype is known only by its exact name") {
    for (const auto* name :
         {"", "f32", "bf16", "F128", "F32 ", " F32", "F3", "BOOLEAN", "F8", "float32"}) {
      CAPTURE(name);
      CHECK_FALSE(parse_dtype(name));
    }
    CHECK_FALSE(parse_dtype(std::string_view("F32\0", 4)));
  }
}
