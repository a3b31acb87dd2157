// libFuzzer target: XML that a store answers. Any text is refused with `protocol_error`, or gives a
// listing within its bounds; an error's words can stand in a message.

#include "storage/azure_answers.hpp"
#include "storage/s3_answers.hpp"

#include <headrace/base/assert.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace {

bool is_printable(std::string_view text) {
  return std::ranges::none_of(text, [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte < 0x20 || byte == 0x7f;
  });
}

}  // namespace

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer's name
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto listing = headrace::parse_s3_listing(text)) {
    HEADRACE_ASSERT(listing->objects.size() <= headrace::max_listing_keys);
    HEADRACE_ASSERT(!listing->is_truncated || !listing->next_continuation_token.empty());
  } else {
    HEADRACE_ASSERT(listing.error().kind() == headrace::errc::protocol_error);
  }
  if (const auto said = headrace::parse_s3_error(text)) {
    HEADRACE_ASSERT(is_printable(said->code) && is_printable(said->message));
    HEADRACE_ASSERT(is_printable(said->request_id) && is_printable(said->region));
    HEADRACE_ASSERT(said->message.size() <= headrace::max_error_body);
  }
  if (const auto listing = headrace::parse_azure_listing(text)) {
    HEADRACE_ASSERT(listing->blobs.size() <= headrace::max_azure_page);
  } else {
    HEADRACE_ASSERT(listing.error().kind() == headrace::errc::protocol_error);
  }
  if (const auto said = headrace::parse_azure_error(text)) {
    HEADRACE_ASSERT(is_printable(said->code) && is_printable(said->message));
  }
  return 0;
}
