// libFuzzer target: what servers write into header fields. Any text is nothing, or a value within
// the bounds that its contract names.

#include "storage/aws_environment.hpp"
#include "storage/content_range.hpp"
#include "storage/entity_tag.hpp"
#include "storage/http_date.hpp"
#include "storage/percent.hpp"
#include "storage/redirect.hpp"
#include "storage/s3_address.hpp"

#include <headrace/base/assert.hpp>
#include <headrace/base/uri.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace {

using namespace headrace;

bool is_visible(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c > 0x20 && c < 0x7f; });
}

void redirected(std::string_view location, bool secure) {
  const http_origin from{secure ? "https" : "http", "store.example", 8080};
  const auto to = resolve_redirect(from, "/a/b/c?signature=secret", location);
  if (!to) {
    HEADRACE_ASSERT(to.error().kind() == errc::protocol_error);
    HEADRACE_ASSERT(std::string_view(to.error().what()).find("secret") == std::string_view::npos);
    return;
  }
  HEADRACE_ASSERT(to->origin.scheme == "https" || (to->origin.scheme == "http" && !secure));
  HEADRACE_ASSERT(!to->origin.host.empty() && to->origin.port != 0);
  HEADRACE_ASSERT(to->target.starts_with('/') && is_visible(to->target));
}

void addressed(std::string_view text) {
  const auto location = uri::parse("s3://" + std::string(text));
  if (!location) return;
  for (const char* const endpoint : {"", "http://127.0.0.1:9000/base"}) {
    aws_settings settings;
    settings.endpoint = endpoint;
    const auto address = make_s3_address(*location, settings);
    if (!address) continue;
    HEADRACE_ASSERT(is_visible(address->host_field()));
    HEADRACE_ASSERT(is_visible(address->object_path(address->key)));
    HEADRACE_ASSERT(address->object_path(address->key).starts_with('/'));
  }
}

}  // namespace

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer's name
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto range = parse_content_range(text)) {
    if (range->range) {
      HEADRACE_ASSERT(range->range->size > 0 && range->range->end() > range->range->begin);
      HEADRACE_ASSERT(!range->total || range->range->end() <= *range->total);
    } else {
      HEADRACE_ASSERT(range->total);
    }
  }
  if (const auto tag = parse_entity_tag(text)) {
    HEADRACE_ASSERT(tag->quoted.size() >= 2);
    HEADRACE_ASSERT(parse_entity_tag(tag->text()) == tag);
  }
  const std::chrono::sys_seconds now(std::chrono::seconds(1'700'000'000));
  static_cast<void>(parse_http_date(text, now));
  if (const auto wait = parse_retry_after(text, now)) {
    HEADRACE_ASSERT(wait->count() >= 0 && *wait <= std::chrono::hours(24 * 366 * 100));
  }
  HEADRACE_ASSERT(percent_decode(percent_encode(text)) == text);
  redirected(text, true);
  redirected(text, false);
  addressed(text);
  return 0;
}
