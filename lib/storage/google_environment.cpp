#include "storage/google_environment.hpp"

#include "storage/text.hpp"

#include <array>
#include <string_view>
#include <utility>

namespace headrace {
namespace {

failure<error> refused(const std::string& message) {
  return failure{error(errc::invalid_request, message)};
}

bool is_yes(std::string_view text) noexcept {
  constexpr std::array<std::string_view, 4> yes{"1", "true", "yes", "on"};
  for (const auto word : yes) {
    if (detail::same_name(text, word)) return true;
  }
  return false;
}

bool is_project(std::string_view text) noexcept {
  return text.size() <= 128 && detail::all(text, detail::is_visible);
}

result<service_place> read_endpoint(const storage_options& options, const named_value& emulator) {
  if (!options.endpoint.empty()) return parse_service_place(options.endpoint, "storage.endpoint");
  if (emulator.value.empty())
    return parse_service_place("https://storage.googleapis.com", "the endpoint");
  const bool has_scheme = emulator.value.find("://") != std::string::npos;
  auto place =
      parse_service_place(has_scheme ? emulator.value : "http://" + emulator.value, emulator.name);
  if (!place) return place;
  // Tools that speak the JSON API name its place on the server.
  constexpr std::string_view json = "/storage/v1";
  if (place->path == json) place->path.clear();
  return place;
}

result<void> read_metadata(google_settings& settings, const variable_lookup& variable) {
  settings.asks_metadata = !is_yes(first_of(variable, {"NO_GCE_CHECK"}).value);
  const auto host = first_of(variable, {"GCE_METADATA_HOST"});
  settings.metadata_named = !host.value.empty();
  if (!settings.metadata_named) {
    settings.metadata = {"http", "169.254.169.254", 80};
    return {};
  }
  auto place = parse_service_place("http://" + host.value, host.name);
  if (!place || !place->path.empty()) {
    return failure{error(errc::invalid_request,
                         std::string(host.name) + " is no host: expected host or host:port")};
  }
  settings.metadata = std::move(place->origin);
  return {};
}

}  // namespace

result<google_settings> read_google_settings(const storage_options& options,
                                             const variable_lookup& variable) {
  google_settings settings;
  const auto emulator = first_of(variable, {"STORAGE_EMULATOR_HOST"});
  auto endpoint = read_endpoint(options, emulator);
  if (!endpoint) return failure{endpoint.error()};
  if (!endpoint->query.empty()) return refused("the endpoint must not have a query");
  settings.endpoint = std::move(*endpoint);

  const auto project = first_of(variable, {"GOOGLE_CLOUD_QUOTA_PROJECT", "GOOGLE_CLOUD_PROJECT"});
  if (!is_project(project.value))
    return refused(std::string(project.name) + " is no name of a project");
  settings.project = project.value;

  if (options.anonymous) {
    settings.anonymous = true;
    settings.anonymous_reason = "storage.anonymous is set";
    return settings;
  }
  if (!options.token.empty()) {
    if (!detail::all(options.token, detail::is_visible)) {
      return refused(
          "storage.token holds a space, a line end or another character that tokens do not have");
    }
    settings.token = options.token;
    return settings;
  }
  if (options.endpoint.empty() && !emulator.value.empty()) {
    settings.anonymous = true;
    settings.anonymous_reason = std::string(emulator.name) + " is set";
    return settings;
  }

  settings.named_file = first_of(variable, {"GOOGLE_APPLICATION_CREDENTIALS"}).value;
  const std::string known = "application_default_credentials.json";
  if (const auto folder = first_of(variable, {"CLOUDSDK_CONFIG"}); !folder.value.empty()) {
    settings.well_known_file = folder.value + "/" + known;
  } else if (const auto home = first_of(variable, {"HOME"}); !home.value.empty()) {
    settings.well_known_file = home.value + "/.config/gcloud/" + known;
  }
  if (auto read = read_metadata(settings, variable); !read) return failure{read.error()};
  return settings;
}

}  // namespace headrace
