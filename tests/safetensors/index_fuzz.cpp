// libFuzzer target: any text is refused with `invalid_safetensors`, or gives an index whose entries
// name its files.

#include <headrace/base/assert.hpp>
#include <headrace/safetensors/index.hpp>

#include <cstddef>
#include <cstdint>
#include <string_view>

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer's name
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto parsed = headrace::parse_index({reinterpret_cast<const char*>(data), size});
  if (!parsed) {
    HEADRACE_ASSERT(parsed.error().kind() == headrace::errc::invalid_safetensors);
    return 0;
  }
  for (const auto& entry : parsed->tensors) {
    HEADRACE_ASSERT(entry.file < parsed->files.size());
    HEADRACE_ASSERT(parsed->find(entry.tensor) == entry.file);
  }
  for (const auto& name : parsed->files) {
    HEADRACE_ASSERT(!name.empty() && name.front() != '/');
    HEADRACE_ASSERT(("/" + name + "/").find("/../") == std::string_view::npos);
  }
  return 0;
}
