#include "storage/aws_key_chain.hpp"

#include "storage/aws_endpoints.hpp"
#include "storage/aws_instance.hpp"
#include "storage/aws_profile_keys.hpp"
#include "storage/aws_token_service.hpp"
#include "storage/text.hpp"

#include <headrace/base/log.hpp>

#include <utility>

namespace headrace {
namespace {

class aws_key_chain final : public expiring_source<aws_keys> {
 public:
  aws_key_chain(aws_chain_settings settings, const clock& time)
      : settings_(std::move(settings)), time_(time) {}

  task<result<expiring<aws_keys>>> fetch(storage_loop& loop) override {
    auto found = co_await look(loop);
    if (!found) co_return failure{found.error()};
    if (log_enabled(log_level::debug)) log(log_level::debug, "AWS keys: " + found->source);
    const auto expires = found->expires;
    co_return expiring<aws_keys>{std::move(*found), expires};
  }

 private:
  task<result<aws_keys>> look(storage_loop& loop) {
    const aws_settings& given = settings_.given;
    if (given.anonymous)
      co_return aws_keys{
          .credentials = {},
          .source = "none: requests are not signed, as " + given.anonymous_by + " says",
          .expires = {},
          .looked_at = {}};
    if (given.credentials) {
      co_return aws_keys{.credentials = given.credentials,
                         .source = given.credentials_by,
                         .expires = {},
                         .looked_at = {}};
    }
    // Anew each time: other tools write these files when keys have run out.
    auto files = co_await read_aws_profiles(loop, settings_.variable);
    if (!files) co_return failure{files.error()};
    const auto profile = choose_profile(*files, given.profile);
    if (!profile) co_return failure{profile.error()};
    auto search = search_for(loop, *files, *profile);
    if (!search) co_return failure{search.error()};

    if (*profile != nullptr) {
      auto keys = co_await keys_of_profile(*search, *files, given.profile.name);
      if (!keys) co_return failure{keys.error()};
      if (*keys) co_return std::move(**keys);
    }
    auto identity = co_await keys_of_web_identity(*search);
    if (!identity) co_return failure{identity.error()};
    if (*identity) co_return std::move(**identity);
    auto container = co_await keys_of_container(*search, settings_.container_agent);
    if (!container) co_return failure{container.error()};
    if (*container) co_return std::move(**container);
    auto instance = co_await keys_of_instance(*search);
    if (!instance) co_return failure{instance.error()};
    if (instance->keys) co_return std::move(*instance->keys);
    co_return nothing_found(*files, *profile != nullptr, instance->nothing);
  }

  result<aws_search> search_for(storage_loop& loop, const aws_profiles& files,
                                const aws_section* profile) const {
    aws_search search{
        .loop = loop,
        .variable = settings_.variable,
        .network = settings_.network,
        .time = time_,
        .region = first_of(settings_.variable, {"AWS_REGION", "AWS_DEFAULT_REGION"}).value,
        .sts_endpoint = {},
        .sso_endpoint = {}};
    if (search.region.empty() && profile != nullptr) search.region = profile->value("region");
    auto ignored = ignores_endpoints(settings_.variable);
    if (!ignored) return failure{ignored.error()};
    if (*ignored) return search;
    for (const auto& [service, endpoint] : {std::pair{"sts", &aws_search::sts_endpoint},
                                            std::pair{"sso", &aws_search::sso_endpoint}}) {
      search.*endpoint = variable_endpoint(settings_.variable, service);
      if (!(search.*endpoint).empty() || profile == nullptr) continue;
      auto named = profile_endpoint(files, *profile, service);
      if (!named) return failure{named.error()};
      search.*endpoint = std::move(*named);
    }
    return search;
  }

  [[nodiscard]] aws_keys nothing_found(const aws_profiles& files, bool has_profile,
                                       const std::string& instance) const {
    const std::string profile =
        "profile '" + detail::printable(settings_.given.profile.name, 64) + "' in " + files.files();
    return {.credentials = {},
            .source = "none: no keys were found, so that requests are not signed",
            .expires = {},
            .looked_at = "no keys were found in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, " +
                         profile + (has_profile ? " (without keys)" : "") +
                         ", AWS_WEB_IDENTITY_TOKEN_FILE, AWS_CONTAINER_CREDENTIALS_RELATIVE_URI, "
                         "AWS_CONTAINER_CREDENTIALS_FULL_URI and the instance metadata service (" +
                         instance +
                         "): set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"};
  }

  const aws_chain_settings settings_;
  const clock& time_;
};

}  // namespace

std::shared_ptr<expiring_source<aws_keys>> make_aws_key_chain(aws_chain_settings settings,
                                                              const clock& time) {
  return std::make_shared<aws_key_chain>(std::move(settings), time);
}

}  // namespace headrace
