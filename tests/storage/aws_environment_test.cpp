#include "storage/aws_environment.hpp"

#include <doctest/doctest.h>

#include <map>
#include <optional>
#include <string>

using headrace::aws_credentials;
using headrace::aws_settings;
using headrace::errc;
using headrace::read_aws_settings;
using headrace::storage_options;

namespace {

using variables = std::map<std::string, std::string>;

headrace::variable_lookup lookup(variables set) {
  return [set = std::move(set)](const char* name) -> std::optional<std::string> {
    const auto found = set.find(name);
    if (found == set.end()) return std::nullopt;
    return found->second;
  };
}

aws_settings settings_of(const variables& set, const storage_options& options = {}) {
  auto settings = read_aws_settings(options, lookup(set));
  REQUIRE(settings.has_value());
  return *settings;
}

std::string refusal(const variables& set, const storage_options& options = {}) {
  auto settings = read_aws_settings(options, lookup(set));
  REQUIRE_FALSE(settings.has_value());
  CHECK(settings.error().kind() == errc::invalid_request);
  return settings.error().reason();
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_SUITE("unit") {
  TEST_CASE("an empty environment means AWS, without a signature and without saying so") {
    const auto settings = settings_of({});
    CHECK_FALSE(settings.credentials.has_value());
    CHECK_FALSE(settings.anonymous);
    CHECK(settings.endpoint.empty());
    CHECK(settings.region.empty());
    CHECK_FALSE(settings.path_style.has_value());
  }

  TEST_CASE("keys come from the environment, with or without a token") {
    CHECK(settings_of({{"AWS_ACCESS_KEY_ID", "id"}, {"AWS_SECRET_ACCESS_KEY", "secret"}})
              .credentials == aws_credentials{"id", "secret", ""});
    CHECK(settings_of({{"AWS_ACCESS_KEY_ID", "id"},
                       {"AWS_SECRET_ACCESS_KEY", "secret"},
                       {"AWS_SESSION_TOKEN", "token"}})
              .credentials == aws_credentials{"id", "secret", "token"});
    CHECK_FALSE(settings_of({{"AWS_SESSION_TOKEN", "token"}}).credentials.has_value());
    CHECK_FALSE(settings_of({{"AWS_ACCESS_KEY_ID", ""}, {"AWS_SECRET_ACCESS_KEY", ""}})
                    .credentials.has_value());
  }

  TEST_CASE("half of the keys is an error that names the missing half") {
    for (const auto& empty : {variables{}, variables{{"AWS_SECRET_ACCESS_KEY", ""}}}) {
      auto set = empty;
      set["AWS_ACCESS_KEY_ID"] = "AKIDVALUE";
      const auto message = refusal(set);
      CHECK(contains(message, "AWS_SECRET_ACCESS_KEY is not"));
      CHECK_FALSE(contains(message, "AKIDVALUE"));
    }
    const auto message = refusal({{"AWS_SECRET_ACCESS_KEY", "SECRETVALUE"}});
    CHECK(contains(message, "AWS_ACCESS_KEY_ID is not"));
    CHECK_FALSE(contains(message, "SECRETVALUE"));
  }

  TEST_CASE(
      "keys with line ends or spaces are an error that names the variable and not the value") {
    auto message =
        refusal({{"AWS_ACCESS_KEY_ID", "id"}, {"AWS_SECRET_ACCESS_KEY", "SECRETVALUE\n"}});
    CHECK(contains(message, "AWS_SECRET_ACCESS_KEY"));
    CHECK_FALSE(contains(message, "SECRETVALUE"));
    CHECK(contains(refusal({{"AWS_ACCESS_KEY_ID", "i d"}, {"AWS_SECRET_ACCESS_KEY", "s"}}),
                   "AWS_ACCESS_KEY_ID"));
    CHECK(contains(refusal({{"AWS_ACCESS_KEY_ID", "id"},
                            {"AWS_SECRET_ACCESS_KEY", "s"},
                            {"AWS_SESSION_TOKEN", "a\r\nX: y"}}),
                   "AWS_SESSION_TOKEN"));
  }

  TEST_CASE(
      "the endpoint of S3 beats the endpoint of all services, the region beats the default region") {
    CHECK(settings_of({{"AWS_ENDPOINT_URL_S3", "http://a"}, {"AWS_ENDPOINT_URL", "http://b"}})
              .endpoint == "http://a");
    CHECK(settings_of({{"AWS_ENDPOINT_URL", "http://b"}}).endpoint == "http://b");
    CHECK(settings_of({{"AWS_ENDPOINT_URL_S3", ""}, {"AWS_ENDPOINT_URL", "http://b"}}).endpoint ==
          "http://b");
    CHECK(settings_of({{"AWS_REGION", "eu-west-1"}, {"AWS_DEFAULT_REGION", "us-east-2"}}).region ==
          "eu-west-1");
    CHECK(settings_of({{"AWS_DEFAULT_REGION", "us-east-2"}}).region == "us-east-2");
    CHECK(contains(refusal({{"AWS_DEFAULT_REGION", "eu west"}}), "AWS_DEFAULT_REGION"));
  }

  TEST_CASE("any of the switches turns signing off, and a half-set key does not matter then") {
    for (const auto* name : {"AWS_SKIP_SIGNATURE", "AWS_NO_SIGN_REQUEST", "NO_SIGN_REQUEST"}) {
      for (const auto* value : {"1", "true", "YES", "On"}) {
        const auto settings = settings_of({{name, value}, {"AWS_ACCESS_KEY_ID", "id"}});
        CHECK_FALSE(settings.credentials.has_value());
        CHECK(settings.anonymous);
      }
      for (const auto* value : {"0", "false", "No", "off", ""}) {
        const auto settings = settings_of(
            {{name, value}, {"AWS_ACCESS_KEY_ID", "id"}, {"AWS_SECRET_ACCESS_KEY", "s"}});
        CHECK(settings.credentials.has_value());
        CHECK_FALSE(settings.anonymous);
      }
      CHECK(contains(refusal({{name, "maybe"}}), name));
    }
    CHECK(settings_of({{"AWS_SKIP_SIGNATURE", "false"}, {"NO_SIGN_REQUEST", "YES"}}).anonymous);
  }

  TEST_CASE("options beat the environment") {
    const variables set{{"AWS_ACCESS_KEY_ID", "id"},
                        {"AWS_SECRET_ACCESS_KEY", "secret"},
                        {"AWS_ENDPOINT_URL", "http://b"},
                        {"AWS_REGION", "eu-west-1"}};
    storage_options options;
    options.endpoint = "http://mine";
    options.region = "mine-1";
    options.path_style = false;
    options.credentials = {"mine", "mine too", ""};
    options.credentials->secret_access_key = "mine-too";
    auto settings = settings_of(set, options);
    CHECK(settings.endpoint == "http://mine");
    CHECK(settings.region == "mine-1");
    CHECK(settings.path_style == false);
    CHECK(settings.credentials == aws_credentials{"mine", "mine-too", ""});
    CHECK(settings_of({{"AWS_SKIP_SIGNATURE", "1"}}, options).credentials.has_value());
    CHECK(settings_of({{"AWS_ACCESS_KEY_ID", "half"}}, options).credentials->access_key_id ==
          "mine");

    storage_options anonymous;
    anonymous.anonymous = true;
    settings = settings_of(set, anonymous);
    CHECK_FALSE(settings.credentials.has_value());
    CHECK(settings.anonymous);
  }

  TEST_CASE("a profile is chosen by the option, then by the variables") {
    storage_options options;
    options.profile = "mine";
    const variables set{{"AWS_PROFILE", "p"},
                        {"AWS_DEFAULT_PROFILE", "d"},
                        {"AWS_ACCESS_KEY_ID", "id"},
                        {"AWS_SECRET_ACCESS_KEY", "s"}};
    CHECK(settings_of({}).profile.name == "default");
    CHECK(settings_of({}).profile.named_by.empty());
    CHECK(settings_of({{"AWS_DEFAULT_PROFILE", "d"}}).profile.name == "d");
    CHECK(settings_of(set).profile.name == "p");
    CHECK(settings_of(set).profile.named_by == "AWS_PROFILE");
    CHECK(settings_of(set).credentials.has_value());
    CHECK(settings_of(set, options).profile.name == "mine");
    // Whoever names a profile wants its keys.
    CHECK_FALSE(settings_of(set, options).credentials.has_value());
    CHECK_FALSE(settings_of({{"AWS_ACCESS_KEY_ID", "half"}}, options).credentials.has_value());
  }

  TEST_CASE("endpoints that were configured can be ignored, all but the option's") {
    const variables set{{"AWS_ENDPOINT_URL_S3", "http://a"},
                        {"AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true"}};
    CHECK(settings_of(set).endpoint.empty());
    CHECK(settings_of(set).ignores_profile_endpoint);
    storage_options options;
    options.endpoint = "http://mine";
    CHECK(settings_of(set, options).endpoint == "http://mine");
    CHECK(contains(refusal({{"AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "maybe"}}),
                   "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS"));
  }

  TEST_CASE("where keys and switches are from is remembered, and the environment as it was") {
    CHECK(
        settings_of({{"AWS_ACCESS_KEY_ID", "id"}, {"AWS_SECRET_ACCESS_KEY", "s"}}).credentials_by ==
        "the variables AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY");
    CHECK(settings_of({{"NO_SIGN_REQUEST", "1"}}).anonymous_by == "NO_SIGN_REQUEST");
    variables set{{"AWS_ROLE_ARN", "arn"}, {"OTHER", "x"}};
    const auto live = [&set](const char* name) -> std::optional<std::string> {
      const auto found = set.find(name);
      return found == set.end() ? std::nullopt : std::optional<std::string>(found->second);
    };
    const auto remembered = headrace::remember_aws_variables(live);
    set.clear();
    CHECK(remembered("AWS_ROLE_ARN") == "arn");
    CHECK_FALSE(remembered("OTHER").has_value());
    CHECK_FALSE(remembered("HOME").has_value());
  }

  TEST_CASE("options that cannot be are refused before the environment is read") {
    storage_options options;
    options.headers.emplace_back("Host", "x");
    CHECK(contains(refusal({}, options), "Host"));
  }

  TEST_CASE("the process's own environment is read") {
    CHECK(headrace::process_variable("PATH").has_value());
    CHECK_FALSE(headrace::process_variable("HEADRACE_NO_SUCH_VARIABLE").has_value());
  }
}
