#include "storage/aws_profile_keys.hpp"

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
using test::sts_keys;
namespace action = test::action;

struct profile_client : aws_client {
  aws_profiles files;

  explicit profile_client(const std::string& config) {
    files.config_file = "/home/me/.aws/config";
    const auto added = add_aws_config(files, config);
    REQUIRE_MESSAGE(added, (added ? "" : added.error().what()));
  }
  found_aws_keys ask(const std::string& name) {
    return run(keys_of_profile(search(), files, name));
  }
  void refuses(const std::string& name, errc kind, const std::vector<std::string>& parts) {
    CAPTURE(name);
    const auto keys = ask(name);
    REQUIRE_FALSE(keys);
    CHECK(keys.error().kind() == kind);
    for (const auto& part : parts) CHECK_MESSAGE(says(keys.error(), part), keys.error().what());
    CHECK_FALSE(says(keys.error(), "hunter2"));
  }
};

/// STS that names the keys after the role and says who asked.
steps of_role(const seen_request& request) {
  const auto at = request.body.find("role%2F");
  const auto name = request.body.substr(at + 7, request.body.find('&', at) - at - 7);
  return {action::send{answer(200, {}, sts_keys("AssumeRole", name))}};
}

std::string signer_of(const seen_request& request) {
  const auto authorization = request.field("Authorization").value_or("");
  const auto at = authorization.find("Credential=") + 11;
  return authorization.substr(at, authorization.find('/', at) - at);
}

TEST_SUITE("fault") {
  TEST_CASE("keys that stand in a profile are used, and a profile may have none") {
    profile_client here(
        "[default]\naws_access_key_id = AKIDFILE\naws_secret_access_key = s\naws_session_token = t\n"
        "credential_process = false\n[profile empty]\nregion = x\n");
    const auto keys = here.ask("default");
    REQUIRE(keys);
    CHECK((*keys)->credentials == aws_credentials{"AKIDFILE", "s", "t"});
    CHECK((*keys)->source == "profile 'default' in /home/me/.aws/config");
    CHECK_FALSE(here.ask("empty")->has_value());
  }

  TEST_CASE("half of the keys, or keys that cannot be sent, are errors that name the profile") {
    profile_client here(
        "[profile a]\naws_access_key_id = hunter2\n[profile b]\naws_secret_access_key = hunter2\n"
        "[profile c]\naws_access_key_id = x\naws_secret_access_key = hunter2\n  hunter2\n");
    here.refuses("a", errc::invalid_request,
                 {"profile 'a' in /home/me/.aws/config", "no aws_secret_access_key"});
    here.refuses("b", errc::invalid_request, {"profile 'b'", "no aws_access_key_id"});
    here.refuses("c", errc::invalid_request, {"profile 'c'"});
  }

  TEST_CASE("roles lead to each other, each taken on with the keys of the one before") {
    scripted_server server(&of_role);
    profile_client here(
        "[profile top]\nrole_arn = arn:aws:iam::1:role/Top\nsource_profile = middle\n"
        "role_session_name = me\nexternal_id = ext\nduration_seconds = 900\n"
        "[profile middle]\nrole_arn = arn:aws:iam::1:role/Middle\nsource_profile = base\n"
        "[profile base]\naws_access_key_id = AKIDBASE\naws_secret_access_key = s\n");
    here.variables["AWS_ENDPOINT_URL_STS"] = server.url("");
    const auto keys = here.ask("top");
    REQUIRE_MESSAGE(keys, (keys ? "" : keys.error().what()));
    CHECK((*keys)->credentials == aws_credentials{"ASIATop", "secret-Top", "token-Top"});
    CHECK((*keys)->source.find("profile 'base'") != std::string::npos);
    const auto requests = server.requests();
    REQUIRE(requests.size() == 2);
    CHECK(signer_of(requests[0]) == "AKIDBASE");
    CHECK(signer_of(requests[1]) == "ASIAMiddle");
    CHECK(requests[1].field("x-amz-security-token") == "token-Middle");
    CHECK(requests[1].body.find("&RoleSessionName=me&DurationSeconds=900&ExternalId=ext") !=
          std::string::npos);
  }

  TEST_CASE("a profile may take on a role with keys that stand next to it") {
    scripted_server server(&of_role);
    profile_client here(
        "[profile own]\nrole_arn = arn:aws:iam::1:role/Own\nsource_profile = own\n"
        "aws_access_key_id = AKIDOWN\naws_secret_access_key = s\n");
    here.variables["AWS_ENDPOINT_URL_STS"] = server.url("");
    REQUIRE(here.ask("own"));
    REQUIRE(server.requests().size() == 1);
    CHECK(signer_of(server.requests()[0]) == "AKIDOWN");
  }

  TEST_CASE("a role is taken on with keys of the environment or of the container") {
    scripted_server server(&of_role);
    scripted_server container([](const seen_request&) -> steps {
      return {action::send{answer(200, {}, test::json_keys("TASK"))}};
    });
    profile_client here(
        "[profile env]\nrole_arn = arn:aws:iam::1:role/Env\ncredential_source = Environment\n"
        "[profile ecs]\nrole_arn = arn:aws:iam::1:role/Ecs\ncredential_source = EcsContainer\n"
        "[profile ec2]\nrole_arn = arn:aws:iam::1:role/X\ncredential_source = Ec2InstanceMetadata\n"
        "[profile odd]\nrole_arn = arn:aws:iam::1:role/X\ncredential_source = Odd\n");
    here.variables["AWS_ENDPOINT_URL_STS"] = server.url("");
    here.refuses("env", errc::invalid_request, {"Environment", "no keys"});
    here.variables["AWS_ACCESS_KEY_ID"] = "AKIDENV";
    here.variables["AWS_SECRET_ACCESS_KEY"] = "s";
    REQUIRE(here.ask("env"));
    here.variables["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = container.url("/");
    REQUIRE(here.ask("ecs"));
    CHECK(signer_of(server.requests().at(0)) == "AKIDENV");
    CHECK(signer_of(server.requests().at(1)) == "ASIATASK");
    here.refuses("ec2", errc::access_denied, {"Ec2InstanceMetadata", "AWS_EC2_METADATA_DISABLED"});
    here.refuses("odd", errc::invalid_request, {"credential_source"});
  }

  TEST_CASE("sources that are not there, lead in a circle or exclude each other are refused") {
    profile_client here(
        "[profile a]\nrole_arn = arn:x\nsource_profile = b\n"
        "[profile b]\nrole_arn = arn:x\nsource_profile = a\n"
        "[profile self]\nrole_arn = arn:x\nsource_profile = self\n"
        "[profile lost]\nrole_arn = arn:x\nsource_profile = nowhere\n"
        "[profile both]\nrole_arn = arn:x\nsource_profile = a\ncredential_source = Environment\n"
        "[profile neither]\nrole_arn = arn:x\n"
        "[profile poor]\nrole_arn = arn:x\nsource_profile = nothing\n[profile nothing]\nregion = x\n"
        "[profile short]\nrole_arn = arn:x\nsource_profile = keys\nduration_seconds = 1\n"
        "[profile keys]\naws_access_key_id = x\naws_secret_access_key = y\n"
        "[profile code]\nrole_arn = arn:x\nsource_profile = keys\nmfa_serial = arn:mfa\n"
        "[profile web]\nweb_identity_token_file = /x\n");
    here.refuses("a", errc::invalid_request, {"source_profile", "back to itself"});
    here.refuses("self", errc::invalid_request, {"profile 'self'", "back to itself"});
    here.refuses("lost", errc::invalid_request, {"'nowhere'", "/home/me/.aws/config"});
    here.refuses("both", errc::invalid_request, {"exclude each other"});
    here.refuses("neither", errc::invalid_request, {"neither source_profile nor"});
    here.refuses("poor", errc::invalid_request, {"profile 'nothing'", "no keys"});
    here.refuses("short", errc::invalid_request, {"duration_seconds"});
    here.refuses("code", errc::unsupported, {"mfa_serial", "--profile code"});
    here.refuses("web", errc::invalid_request, {"no role_arn"});
  }

  TEST_CASE("more roles than lead anywhere are refused") {
    std::string config;
    for (int i = 0; i < 12; ++i) {
      config += "[profile p" + std::to_string(i) + "]\nrole_arn = arn:x\nsource_profile = p" +
                std::to_string(i + 1) + "\n";
    }
    config += "[profile p12]\naws_access_key_id = x\naws_secret_access_key = y\n";
    profile_client here(config);
    here.refuses("p0", errc::invalid_request, {"more than 8 roles"});
  }

  TEST_CASE("a profile's web identity and process are used") {
    scripted_server server([](const seen_request&) -> steps {
      return {action::send{answer(200, {}, sts_keys("AssumeRoleWithWebIdentity", "WEB"))}};
    });
    profile_client here(
        "[profile web]\nrole_arn = arn:x\nweb_identity_token_file = ~/token\n"
        "[profile process]\ncredential_process = printf %s "
        "'{\"Version\":1,\"AccessKeyId\":\"AKIDP\",\"SecretAccessKey\":\"s\"}'\n");
    here.variables["AWS_ENDPOINT_URL_STS"] = server.url("");
    here.home.write("token", "jwt");
    const auto web = here.ask("web");
    REQUIRE_MESSAGE(web, (web ? "" : web.error().what()));
    CHECK((*web)->credentials->access_key_id == "ASIAWEB");
    const auto process = here.ask("process");
    REQUIRE(process);
    CHECK((*process)->credentials->access_key_id == "AKIDP");
  }
}

}  // namespace
}  // namespace headrace
