// libFuzzer target: what users set, by the environment and in locations. Any text is refused, or
// gives settings that can be sent as they are; no refusal repeats a secret.

#include "storage/azure_address.hpp"
#include "storage/azure_environment.hpp"
#include "storage/hub_address.hpp"
#include "storage/ini_file.hpp"
#include "storage/sas_token.hpp"
#include "storage/service_place.hpp"
#include "storage/shell_words.hpp"

#include <headrace/base/assert.hpp>
#include <headrace/base/uri.hpp>
#include <headrace/storage/object_store.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace {

using namespace headrace;

bool is_visible(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c > 0x20 && c < 0x7f; });
}

bool keeps_quiet(const error& refused) {
  return std::string_view(refused.what()).find("hunter2") == std::string_view::npos;
}

}  // namespace

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer's name
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  if (const auto token = parse_sas_token(text)) HEADRACE_ASSERT(is_visible(token->query));
  if (const auto place = parse_service_place(text, "the variable")) {
    HEADRACE_ASSERT(!place->origin.host.empty() && place->origin.port != 0);
    HEADRACE_ASSERT(is_visible(place->target()) && place->target().starts_with('/'));
  } else {
    HEADRACE_ASSERT(keeps_quiet(place.error()));
  }
  for (const char* const scheme : {"hf://", "az://", "abfss://", "gs://", "s3://"}) {
    const auto location = uri::parse(scheme + text);
    if (!location) continue;
    if (location->scheme == "hf") {
      if (const auto address = parse_hub_address(*location))
        HEADRACE_ASSERT(is_hub_repository(address->repository));
    }
    static_cast<void>(open_store(scheme + text, {.endpoint = "http://127.0.0.1:1"}));
  }
  const auto sections = parse_ini(text, "the file");
  if (!sections) HEADRACE_ASSERT(keeps_quiet(sections.error()));
  static_cast<void>(split_shell_words(text));
  const auto variable = [&text](const char* name) -> std::optional<std::string> {
    if (std::string_view(name) == "AZURE_STORAGE_CONNECTION_STRING") return text;
    return std::nullopt;
  };
  const auto container = uri::parse("az://models/m");
  HEADRACE_ASSERT(container);
  const auto location = parse_azure_location(*container);
  HEADRACE_ASSERT(location);
  const auto settings = read_azure_settings(*location, {}, variable);
  if (!settings) HEADRACE_ASSERT(keeps_quiet(settings.error()));
  return 0;
}
