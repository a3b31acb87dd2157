#include "storage/aws_key_chain.hpp"

#include "aws_client.hpp"

#include <doctest/doctest.h>
#include <support/scripted_server.hpp>

namespace headrace {
namespace {

using test::answer;
using test::aws_client;
using test::json_keys;
using test::says;
using test::scripted_server;
using test::seen_request;
using test::steps;
using test::sts_keys;
namespace action = test::action;

/// A machine on which every link has keys.
struct chain_client : aws_client {
  scripted_server sts{[](const seen_request&) -> steps {
    return {action::send{answer(200, {}, sts_keys("AssumeRoleWithWebIdentity", "WEB"))}};
  }};
  scripted_server container{[](const seen_request&) -> steps {
    return {action::send{answer(200, {}, json_keys("TASK"))}};
  }};
  scripted_server machine{[](const seen_request& request) -> steps {
    if (request.method == "PUT") return {action::send{answer(200, {}, "TOKEN")}};
    if (request.target.ends_with('/')) return {action::send{answer(200, {}, "role")}};
    return {action::send{answer(200, {}, json_keys("EC2"))}};
  }};

  chain_client() {
    variables["AWS_ACCESS_KEY_ID"] = "AKIDENV";
    variables["AWS_SECRET_ACCESS_KEY"] = "s";
    home.write(".aws/credentials",
               "[default]\naws_access_key_id = AKIDFILE\naws_secret_access_key = s\n"
               "[other]\naws_access_key_id = AKIDOTHER\naws_secret_access_key = s\n");
    variables["AWS_ENDPOINT_URL_STS"] = sts.url("");
    variables["AWS_WEB_IDENTITY_TOKEN_FILE"] = home.write("token", "jwt");
    variables["AWS_ROLE_ARN"] = "arn:x";
    variables["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = container.url("/");
    variables.erase("AWS_EC2_METADATA_DISABLED");
    variables["AWS_EC2_METADATA_SERVICE_ENDPOINT"] = machine.url("");
  }

  result<aws_keys> ask(const storage_options& options = {}) {
    auto given = read_aws_settings(options, lookup);
    if (!given) return failure{given.error()};
    const auto chain = make_aws_key_chain({.given = std::move(*given),
                                           .variable = remember_aws_variables(lookup),
                                           .network = nullptr},
                                          time);
    auto found = run(chain->fetch(services));
    if (!found) return failure{found.error()};
    CHECK(found->expires == found->value.expires);
    return std::move(found->value);
  }
  std::string id(const storage_options& options = {}) {
    const auto keys = ask(options);
    if (!keys) return keys.error().what();
    return keys->credentials ? keys->credentials->access_key_id : "none";
  }
};

TEST_SUITE("fault") {
  TEST_CASE("the links are asked in their order, and the first that has keys is used") {
    chain_client here;
    storage_options options;
    options.credentials = aws_credentials{"AKIDOPTION", "s", ""};
    CHECK(here.id(options) == "AKIDOPTION");
    CHECK(here.id() == "AKIDENV");
    here.variables.erase("AWS_ACCESS_KEY_ID");
    here.variables.erase("AWS_SECRET_ACCESS_KEY");
    CHECK(here.id() == "AKIDFILE");
    here.home.write(".aws/credentials", "");
    CHECK(here.id() == "ASIAWEB");
    here.variables.erase("AWS_WEB_IDENTITY_TOKEN_FILE");
    CHECK(here.id() == "ASIATASK");
    here.variables.erase("AWS_CONTAINER_CREDENTIALS_FULL_URI");
    CHECK(here.id() == "ASIAEC2");
    here.variables["AWS_EC2_METADATA_DISABLED"] = "true";
    CHECK(here.id() == "none");
    // None was asked before its turn.
    CHECK(here.sts.requests().size() == 1);
    CHECK(here.container.requests().size() == 1);
    CHECK(here.machine.requests().size() == 3);
  }

  TEST_CASE(
      "a profile that an option names beats the variables, one that a variable names does not") {
    chain_client here;
    here.variables["AWS_PROFILE"] = "other";
    CHECK(here.id() == "AKIDENV");
    here.variables.erase("AWS_ACCESS_KEY_ID");
    here.variables.erase("AWS_SECRET_ACCESS_KEY");
    CHECK(here.id() == "AKIDOTHER");
    storage_options options;
    options.profile = "default";
    CHECK(here.id(options) == "AKIDFILE");
    options.profile = "nobody";
    CHECK(here.id(options).find("storage.profile names the profile 'nobody'") != std::string::npos);
    here.variables["AWS_PROFILE"] = "nobody";
    CHECK(here.id().find("AWS_PROFILE names the profile 'nobody'") != std::string::npos);
  }

  TEST_CASE("a link that is configured and broken is an error, and the next one is not asked") {
    chain_client here;
    here.variables.erase("AWS_SECRET_ACCESS_KEY");
    CHECK(here.id().find("AWS_SECRET_ACCESS_KEY is not") != std::string::npos);
    here.variables.erase("AWS_ACCESS_KEY_ID");
    here.home.write(".aws/credentials", "[default]\naws_access_key_id = half\n");
    CHECK(here.id().find("no aws_secret_access_key") != std::string::npos);
    here.home.write(".aws/credentials", "");
    here.variables["AWS_WEB_IDENTITY_TOKEN_FILE"] = here.home.path("gone");
    CHECK(here.id().find("is not there") != std::string::npos);
    here.variables.erase("AWS_WEB_IDENTITY_TOKEN_FILE");
    here.variables["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = "http://example.com/";
    CHECK(here.id().find("AWS_CONTAINER_CREDENTIALS_FULL_URI") != std::string::npos);
    CHECK(here.machine.requests().empty());
  }

  TEST_CASE("where no link has keys, requests are not signed, and it is known what was looked at") {
    aws_client here;
    auto given = read_aws_settings({}, here.lookup);
    REQUIRE(given);
    const auto chain = make_aws_key_chain(
        {.given = *given, .variable = here.lookup, .network = nullptr}, here.time);
    const auto found = here.run(chain->fetch(here.services));
    REQUIRE(found);
    CHECK_FALSE(found->value.credentials.has_value());
    for (const std::string part :
         {"AWS_ACCESS_KEY_ID", "profile 'default'", "/.aws/config (not there)",
          "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
          "switched off by AWS_EC2_METADATA_DISABLED"})
      CHECK_MESSAGE(found->value.looked_at.find(part) != std::string::npos, part);
  }

  TEST_CASE("who does not want a signature is not looked for keys") {
    chain_client here;
    storage_options options;
    options.anonymous = true;
    auto keys = here.ask(options);
    REQUIRE(keys);
    CHECK_FALSE(keys->credentials.has_value());
    CHECK(keys->source.find("storage.anonymous") != std::string::npos);
    here.variables["AWS_SKIP_SIGNATURE"] = "true";
    keys = here.ask();
    REQUIRE(keys);
    CHECK_FALSE(keys->credentials.has_value());
    CHECK(keys->source.find("AWS_SKIP_SIGNATURE") != std::string::npos);
  }

  TEST_CASE("STS is asked where the variables, then the profile, say") {
    chain_client here;
    here.variables.erase("AWS_ACCESS_KEY_ID");
    here.variables.erase("AWS_SECRET_ACCESS_KEY");
    here.variables.erase("AWS_ENDPOINT_URL_STS");
    here.home.write(".aws/credentials", "");
    here.home.write(".aws/config",
                    "[default]\nservices = mine\n[services mine]\nsts =\n  endpoint_url = " +
                        here.sts.url("/by-profile") + "\n");
    CHECK(here.id() == "ASIAWEB");
    here.variables["AWS_ENDPOINT_URL"] = here.sts.url("/by-variable");
    CHECK(here.id() == "ASIAWEB");
    CHECK(here.sts.requests().at(0).target == "/by-profile");
    CHECK(here.sts.requests().at(1).target == "/by-variable");
  }

  TEST_CASE("files that were written anew are read anew") {
    chain_client here;
    here.variables.erase("AWS_ACCESS_KEY_ID");
    here.variables.erase("AWS_SECRET_ACCESS_KEY");
    auto given = read_aws_settings({}, here.lookup);
    REQUIRE(given);
    refreshed<aws_keys> keys(
        make_aws_key_chain(
            {.given = *given, .variable = remember_aws_variables(here.lookup), .network = nullptr},
            here.time),
        here.time);
    const auto first = here.run(keys.get(here.services));
    REQUIRE(first);
    here.home.write(".aws/credentials",
                    "[default]\naws_access_key_id = AKIDNEW\naws_secret_access_key = s\n");
    keys.refuse(*first);
    const auto second = here.run(keys.get(here.services));
    REQUIRE(second);
    CHECK(second->credentials->access_key_id == "AKIDNEW");
  }
}

}  // namespace
}  // namespace headrace
