// libFuzzer target: JSON of services and of credential files. Any text is refused, or gives values
// within the bounds that their contracts name; no refusal repeats what the text holds.

#include "storage/google_credential_file.hpp"
#include "storage/hub_answers.hpp"
#include "storage/json_answer.hpp"
#include "storage/rfc3339.hpp"

#include <headrace/base/assert.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer's name
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace headrace;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto object = detail::parse_json_object(text)) {
    static_cast<void>(detail::string_of(*object, "access_token"));
    static_cast<void>(detail::integer_of(*object, "expires_in"));
  }
  if (const auto commit = parse_hub_commit(text)) {
    HEADRACE_ASSERT(!commit->empty());
    for (const char letter : *commit) HEADRACE_ASSERT(static_cast<unsigned char>(letter) > 0x20);
  } else {
    HEADRACE_ASSERT(commit.error().kind() == errc::protocol_error);
  }
  if (const auto files = parse_hub_tree(text)) {
    HEADRACE_ASSERT(files->size() <= max_hub_page);
  } else {
    HEADRACE_ASSERT(files.error().kind() == errc::protocol_error);
  }
  static_cast<void>(next_link(text));
  static_cast<void>(parse_rfc3339(text));
  const auto file = parse_google_credential_file(text, "the file");
  if (!file) {
    const errc kind = file.error().kind();
    HEADRACE_ASSERT(kind == errc::invalid_request || kind == errc::unsupported);
    // The kind of the file is named where it is not known; it is no secret.
    const auto object = detail::parse_json_object(text);
    const std::string named = object ? detail::string_of(*object, "type") : std::string();
    HEADRACE_ASSERT(std::string_view(file.error().what()).find("hunter2") ==
                        std::string_view::npos ||
                    named.find("hunter2") != std::string::npos);
  }
  return 0;
}
