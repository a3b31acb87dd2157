// libFuzzer target: the variables that name proxies. Any text is refused without a word of it, or
// gives a proxy that can be asked; no list of exceptions is too odd to be read.

#include "http/http_proxy.hpp"

#include <headrace/base/assert.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer's name
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace headrace::detail;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto proxy = http_proxy::parse(text, "https_proxy")) {
    HEADRACE_ASSERT(!proxy->at.host.empty() && proxy->at.port != 0);
    HEADRACE_ASSERT(
        std::ranges::all_of(proxy->authorization, [](char c) { return c >= 0x20 && c < 0x7f; }));
    HEADRACE_ASSERT(proxy->describe().find("hunter2") == std::string_view::npos ||
                    proxy->at.host.find("hunter2") != std::string_view::npos);
  } else {
    HEADRACE_ASSERT(std::string_view(proxy.error().what()).find("hunter2") ==
                    std::string_view::npos);
  }
  static_cast<void>(bypasses_proxy(text, "2001:db8::7"));
  static_cast<void>(bypasses_proxy(text, "192.0.2.7"));
  static_cast<void>(bypasses_proxy(text, "www.example.com"));
  return 0;
}
