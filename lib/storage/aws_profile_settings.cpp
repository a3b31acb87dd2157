#include "storage/aws_profile_settings.hpp"

#include "storage/aws_endpoints.hpp"
#include "storage/text.hpp"

#include <utility>

namespace headrace {

task<result<aws_settings>> with_profile_settings(storage_loop& loop, aws_settings given,
                                                 variable_lookup variable) {
  const bool open = (given.endpoint.empty() && !given.ignores_profile_endpoint) ||
                    given.region.empty() || !given.path_style;
  if (!open) co_return given;
  auto files = co_await read_aws_profiles(loop, std::move(variable));
  if (!files) co_return failure{files.error()};
  const auto chosen = choose_profile(*files, given.profile);
  if (!chosen) co_return failure{chosen.error()};
  if (*chosen == nullptr) co_return given;
  const aws_section& profile = **chosen;
  const auto refused = [&](const char* why) {
    return failure{error(errc::invalid_request, "profile '" +
                                                    detail::printable(given.profile.name, 64) +
                                                    "' in " + profile.file + ": " + why)};
  };

  if (given.endpoint.empty() && !given.ignores_profile_endpoint) {
    auto endpoint = profile_endpoint(*files, profile, "s3");
    if (!endpoint) co_return failure{endpoint.error()};
    given.endpoint = std::move(*endpoint);
  }
  if (given.region.empty() && profile.has("region")) {
    given.region = profile.value("region");
    if (!detail::is_region(given.region))
      co_return refused("region is no name of a region: expected one such as eu-west-1");
  }
  if (const auto style = profile.value("s3.addressing_style");
      !style.empty() && !given.path_style) {
    if (style != "path" && style != "virtual" && style != "auto")
      co_return refused("addressing_style is none of path, virtual and auto");
    if (style != "auto") given.path_style = style == "path";
  }
  co_return given;
}

}  // namespace headrace
