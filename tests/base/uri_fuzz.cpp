// libFuzzer target: any text is refused with `invalid_request`, or gives a location whose form for
// messages holds neither user information nor query, and is a location itself.

#include <headrace/base/assert.hpp>
#include <headrace/base/sizes.hpp>
#include <headrace/base/uri.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer's name
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  static_cast<void>(headrace::parse_size(text));
  const auto parsed = headrace::uri::parse(text);
  if (!parsed) {
    HEADRACE_ASSERT(parsed.error().kind() == headrace::errc::invalid_request);
    return 0;
  }
  HEADRACE_ASSERT(!parsed->scheme.empty());
  for (const char letter : parsed->scheme) HEADRACE_ASSERT(letter < 'A' || letter > 'Z');
  const std::string shown = parsed->display();
  for (const char letter : shown) HEADRACE_ASSERT(static_cast<unsigned char>(letter) >= 0x20);
  if (parsed->scheme == "http" || parsed->scheme == "https") {
    const auto again = headrace::uri::parse(shown);
    HEADRACE_ASSERT(again && again->user_info.empty() && again->query.empty());
    HEADRACE_ASSERT(again->authority == parsed->authority && again->path == parsed->path);
  }
  return 0;
}
