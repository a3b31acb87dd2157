#include "storage/aws_sso.hpp"

#include "aws_client.hpp"

#include <doctest/doctest.h>
#include <support/scripted_server.hpp>

namespace headrace {
namespace {

using test::answer;
using test::aws_client;
using test::says;
using test::scripted_server;
using test::seen_request;
using test::steps;
namespace action = test::action;

const std::string config =
    "[profile new]\nsso_session = corp\nsso_account_id = 123456789012\nsso_role_name = Read Only\n"
    "[sso-session corp]\nsso_start_url = https://corp.awsapps.com/start\nsso_region = eu-west-1\n"
    "[profile old]\nsso_start_url = https://old.awsapps.com/start\nsso_region = us-east-1\n"
    "sso_account_id = 1\nsso_role_name = r\n"
    "[profile lost]\nsso_session = none\nsso_account_id = 1\nsso_role_name = r\n"
    "[profile half]\nsso_session = corp\nsso_account_id = 1\n";

struct sso_client : aws_client {
  aws_profiles files;

  sso_client() {
    files.config_file = "/home/me/.aws/config";
    REQUIRE(add_aws_config(files, config));
  }
  void log_in(const std::string& key, const std::string& expires) const {
    home.write(".aws/sso/cache/" + sso_cache_name(key),
               R"({"accessToken":"sso-hunter2","expiresAt":")" + expires + R"("})");
  }
  result<aws_keys> ask(const std::string& name) { return run(keys_of_sso(search(), files, name)); }
};

const std::string keys_body =
    R"({"roleCredentials":{"accessKeyId":"ASIASSO","secretAccessKey":"s","sessionToken":"t","expiration":1767229200000}})";

TEST_SUITE("fault") {
  TEST_CASE("the cached login's file is named as the AWS tools name it") {
    CHECK(sso_cache_name("my-sso") == "0ad374308c5a4e22f723adf10145eafad7c4031c.json");
  }

  TEST_CASE("a login of a session, or of a start URL, is exchanged for keys") {
    scripted_server server(
        [](const seen_request&) -> steps { return {action::send{answer(200, {}, keys_body)}}; });
    sso_client here;
    here.variables["AWS_ENDPOINT_URL_SSO"] = server.url("");
    here.log_in("corp", "2026-01-01T00:00:01Z");
    here.log_in("https://old.awsapps.com/start", "2026-01-01T08:00:00UTC");
    const auto keys = here.ask("new");
    REQUIRE_MESSAGE(keys, (keys ? "" : keys.error().what()));
    CHECK(keys->credentials == aws_credentials{"ASIASSO", "s", "t"});
    CHECK(keys->expires == test::manual_clock::start() + std::chrono::hours(1));
    CHECK(keys->source == "profile 'new' in /home/me/.aws/config, by SSO");
    REQUIRE(here.ask("old"));
    const auto requests = server.requests();
    CHECK(requests.at(0).target ==
          "/federation/credentials?account_id=123456789012&role_name=Read%20Only");
    CHECK(requests.at(0).field("x-amz-sso_bearer_token") == "sso-hunter2");
    CHECK(requests.at(1).target == "/federation/credentials?account_id=1&role_name=r");
  }

  TEST_CASE("a login that is not there, has run out, or is refused says how to log in") {
    scripted_server server(
        [](const seen_request&) -> steps { return {action::send{answer(401)}}; });
    sso_client here;
    here.variables["AWS_ENDPOINT_URL_SSO"] = server.url("");
    const auto told = [&here] {
      const auto keys = here.ask("new");
      REQUIRE_FALSE(keys);
      CHECK(keys.error().kind() == errc::access_denied);
      CHECK(says(keys.error(), "aws sso login --profile new"));
      CHECK_FALSE(says(keys.error(), "hunter2"));
    };
    told();
    here.log_in("corp", "2026-01-01T00:00:00Z");
    told();
    here.home.write(".aws/sso/cache/" + sso_cache_name("corp"), "hunter2");
    told();
    CHECK(server.requests().empty());
    here.log_in("corp", "2026-01-01T08:00:00Z");
    told();
    CHECK(server.requests().size() == 1);
  }

  TEST_CASE("a refusal of the role says what the service says") {
    scripted_server server([](const seen_request&) -> steps {
      return {action::send{answer(403, {}, R"({"message":"No access"})")}};
    });
    sso_client here;
    here.variables["AWS_ENDPOINT_URL_SSO"] = server.url("");
    here.log_in("corp", "2026-01-01T08:00:00Z");
    const auto keys = here.ask("new");
    REQUIRE_FALSE(keys);
    CHECK(says(keys.error(), "No access"));
    CHECK(says(keys.error(), "sso_role_name"));
  }

  TEST_CASE("what a profile lacks is named") {
    sso_client here;
    auto keys = here.ask("lost");
    REQUIRE_FALSE(keys);
    CHECK(says(keys.error(), "[sso-session none]"));
    keys = here.ask("half");
    REQUIRE_FALSE(keys);
    CHECK(says(keys.error(), "sso_role_name"));
    CHECK(keys.error().kind() == errc::invalid_request);
  }
}

}  // namespace
}  // namespace headrace
