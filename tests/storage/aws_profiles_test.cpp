#include "storage/aws_profiles.hpp"

#include "aws_client.hpp"
#include "storage/aws_endpoints.hpp"
#include "storage/aws_profile_settings.hpp"

#include <doctest/doctest.h>

namespace headrace {
namespace {

using test::aws_client;
using test::says;

TEST_SUITE("fault") {
  TEST_CASE("profiles of both files are one, and the credentials file wins") {
    aws_client here;
    here.home.write(
        ".aws/config",
        "[default]\nregion = eu-west-1\n[profile two]\nregion = us-west-2\n"
        "aws_access_key_id = config\n[profile \"three x\"]\nregion = x\n[four]\nregion = y\n"
        "[sso-session s]\nsso_region = eu-west-1\n[services v]\ns3 =\n  endpoint_url = http://h\n");
    here.home.write(".aws/credentials", "[two]\naws_access_key_id = keys\n[profile five]\nx = y\n");
    const auto read = here.run(read_aws_profiles(here.services, here.lookup));
    REQUIRE(read);
    REQUIRE(read->profile("two") != nullptr);
    CHECK(read->profile("two")->value("aws_access_key_id") == "keys");
    CHECK(read->profile("two")->value("region") == "us-west-2");
    CHECK(read->profile("two")->file ==
          here.home.path(".aws/config") + " and " + here.home.path(".aws/credentials"));
    CHECK(read->profile("three x") != nullptr);
    CHECK(read->profile("four") == nullptr);
    CHECK(read->profile("profile five") != nullptr);
    CHECK(read->sso_sessions.at("s").value("sso_region") == "eu-west-1");
    CHECK(read->services.at("v").value("s3.endpoint_url") == "http://h");
  }

  TEST_CASE("the variables say where the files are; none there, or /dev/null, is nothing") {
    aws_client here;
    here.variables["AWS_CONFIG_FILE"] = "~/elsewhere";
    here.variables["AWS_SHARED_CREDENTIALS_FILE"] = "/dev/null";
    here.home.write("elsewhere", "[default]\nregion = here-1\n");
    here.home.write(".aws/credentials", "[default]\nregion = no\n");
    auto read = here.run(read_aws_profiles(here.services, here.lookup));
    REQUIRE(read);
    CHECK(read->profile("default")->value("region") == "here-1");
    here.variables["AWS_CONFIG_FILE"] = here.home.path("missing");
    read = here.run(read_aws_profiles(here.services, here.lookup));
    REQUIRE(read);
    CHECK(read->profiles.empty());
    CHECK(read->files().find("missing (not there)") != std::string::npos);
    here.variables.clear();
    read = here.run(read_aws_profiles(here.services, here.lookup));
    REQUIRE(read);
    CHECK(read->profiles.empty());
  }

  TEST_CASE("a file that cannot be read is an error that names it") {
    aws_client here;
    here.home.write(".aws/credentials", "[default]\nnonsense hunter2\n");
    auto read = here.run(read_aws_profiles(here.services, here.lookup));
    REQUIRE_FALSE(read);
    CHECK(says(read.error(), here.home.path(".aws/credentials") + ", line 2"));
    CHECK_FALSE(says(read.error(), "hunter2"));
    here.home.write(".aws/credentials", "");
    here.home.write(".aws/config", "[a]\nx = " + std::string(2'000'000, 'x'));
    read = here.run(read_aws_profiles(here.services, here.lookup));
    REQUIRE_FALSE(read);
    CHECK(says(read.error(), here.home.path(".aws/config")));
  }

  TEST_CASE("a profile that somebody names and no file has is an error that says who") {
    aws_client here;
    here.home.write(".aws/config", "[profile p]\n");
    const auto read = here.run(read_aws_profiles(here.services, here.lookup));
    REQUIRE(read);
    CHECK(*choose_profile(*read, {.name = "p", .named_by = "AWS_PROFILE"}) != nullptr);
    CHECK(*choose_profile(*read, {}) == nullptr);
    const auto chosen = choose_profile(*read, {.name = "q", .named_by = "AWS_PROFILE"});
    REQUIRE_FALSE(chosen);
    CHECK(says(chosen.error(), "AWS_PROFILE names the profile 'q'"));
    CHECK(says(chosen.error(), here.home.path(".aws/config")));
  }

  TEST_CASE("region, endpoint and addressing come from the profile where nobody else says") {
    aws_client here;
    here.home.write(".aws/config",
                    "[default]\nregion = eu-west-1\nendpoint_url = http://all\ns3 =\n"
                    "  addressing_style = virtual\n[profile v]\nservices = mine\n"
                    "endpoint_url = http://all\n[services mine]\ns3 =\n  endpoint_url = http://s3\n"
                    "[profile bad]\nregion = a b\n[profile worse]\nservices = none\n"
                    "[profile style]\ns3 =\n  addressing_style = odd\n");
    const auto settled = [&here](aws_settings given) {
      return here.run(with_profile_settings(here.services, std::move(given), here.lookup));
    };
    auto settings = settled({});
    REQUIRE(settings);
    CHECK(settings->region == "eu-west-1");
    CHECK(settings->endpoint == "http://all");
    CHECK(settings->path_style == false);
    settings = settled({.endpoint = "http://mine", .region = "mine-1"});
    REQUIRE(settings);
    CHECK(settings->region == "mine-1");
    CHECK(settings->endpoint == "http://mine");
    settings = settled({.ignores_profile_endpoint = true});
    REQUIRE(settings);
    CHECK(settings->endpoint.empty());
    settings = settled({.profile = {"v", "AWS_PROFILE"}});
    REQUIRE(settings);
    CHECK(settings->endpoint == "http://s3");
    CHECK_FALSE(settings->path_style.has_value());
    for (const auto* const name : {"bad", "worse", "style"}) {
      CAPTURE(name);
      const auto refused = settled({.profile = {name, "AWS_PROFILE"}});
      REQUIRE_FALSE(refused);
      CHECK(refused.error().kind() == errc::invalid_request);
      CHECK(says(refused.error(), here.home.path(".aws/config")));
    }
  }

  TEST_CASE("services have endpoints of their own, by variable and by region") {
    aws_client here;
    here.variables["AWS_ENDPOINT_URL"] = "http://all";
    CHECK(variable_endpoint(here.lookup, "sts") == "http://all");
    here.variables["AWS_ENDPOINT_URL_STS"] = "http://sts";
    CHECK(variable_endpoint(here.lookup, "sts") == "http://sts");
    CHECK(variable_endpoint(here.lookup, "sso") == "http://all");
    CHECK(aws_service_host("sts", "eu-west-1") == "sts.eu-west-1.amazonaws.com");
    CHECK(aws_service_host("sts", "cn-north-1") == "sts.cn-north-1.amazonaws.com.cn");
    CHECK(aws_service_host("sts", "") == "sts.amazonaws.com");
  }
}

}  // namespace
}  // namespace headrace
