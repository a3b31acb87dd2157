// libFuzzer target: any bytes are refused with `invalid_safetensors`, or give a header whose
// tensors fill the file.

#include <headrace/base/assert.hpp>
#include <headrace/safetensors/header.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer's name
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto parsed = headrace::parse_header(std::as_bytes(std::span(data, size)), size);
  if (!parsed) {
    HEADRACE_ASSERT(parsed.error().kind() == headrace::errc::invalid_safetensors);
    return 0;
  }
  std::uint64_t end = 0;
  for (const auto& tensor : parsed->tensors) {
    HEADRACE_ASSERT(tensor.begin == end && tensor.end >= end);
    end = tensor.end;
  }
  HEADRACE_ASSERT(parsed->size + end == size);
  return 0;
}
