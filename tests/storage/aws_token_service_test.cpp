#include "storage/aws_token_service.hpp"

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
using test::sts_refusal;
namespace action = test::action;

const aws_keys base{.credentials = aws_credentials{"AKIDBASE", "base-secret", "base-token"},
                    .source = "profile 'base'",
                    .expires = {},
                    .looked_at = {}};

TEST_SUITE("fault") {
  TEST_CASE("a role is taken on with a signed request, and its keys run out") {
    scripted_server server([](const seen_request&) -> steps {
      return {action::send{answer(200, {}, sts_keys("AssumeRole", "ROLE"))}};
    });
    aws_client here;
    here.variables["AWS_ENDPOINT_URL_STS"] = server.url("");
    const aws_role role{.arn = "arn:aws:iam::123456789012:role/a b",
                        .session_name = "me@here",
                        .external_id = "ext",
                        .duration = 3600,
                        .told_by = "profile 'p'"};
    const auto keys = here.run(assume_role(here.search(), role, base));
    REQUIRE_MESSAGE(keys, (keys ? "" : keys.error().what()));
    CHECK(keys->credentials == aws_credentials{"ASIAROLE", "secret-ROLE", "token-ROLE"});
    CHECK(keys->expires == test::manual_clock::start() + std::chrono::hours(1));
    CHECK(keys->source.find("assumed with profile 'base'") != std::string::npos);
    const auto request = server.requests().at(0);
    CHECK(request.method == "POST");
    CHECK(request.target == "/");
    CHECK(request.body ==
          "Action=AssumeRole&Version=2011-06-15&RoleArn=arn%3Aaws%3Aiam%3A%3A123456789012%3Arole%2F"
          "a%20b&RoleSessionName=me%40here&DurationSeconds=3600&ExternalId=ext");
    const auto authorization = request.field("Authorization").value_or("");
    CHECK(authorization.starts_with(
        "AWS4-HMAC-SHA256 Credential=AKIDBASE/20260101/eu-west-1/sts/aws4_request, "
        "SignedHeaders=content-type;host;x-amz-date;x-amz-security-token, Signature="));
    CHECK(request.field("x-amz-security-token") == "base-token");
  }

  TEST_CASE("a session without a name gets one, from the time") {
    scripted_server server([](const seen_request&) -> steps {
      return {action::send{answer(200, {}, sts_keys("AssumeRole", "ROLE"))}};
    });
    aws_client here;
    here.variables["AWS_ENDPOINT_URL_STS"] = server.url("");
    REQUIRE(here.run(assume_role(here.search(), {.arn = "arn:x", .told_by = "p"}, base)));
    CHECK(server.requests().at(0).body.find("&RoleSessionName=headrace-1767225600") !=
          std::string::npos);
  }

  TEST_CASE("a refusal says what the service says and what to check, and no secret") {
    scripted_server server([](const seen_request& request) -> steps {
      if (request.number == 0) {
        return {action::send{answer(403, {}, sts_refusal("AccessDenied", "not authorized"))}};
      }
      return {action::send{answer(403, {}, sts_refusal("Odd", "you sent base-secret"))}};
    });
    aws_client here;
    here.variables["AWS_ENDPOINT_URL_STS"] = server.url("");
    const aws_role role{.arn = "arn:aws:iam::1:role/r", .told_by = "profile 'p'"};
    const auto denied = here.run(assume_role(here.search(), role, base));
    REQUIRE_FALSE(denied);
    CHECK(denied.error().kind() == errc::access_denied);
    for (const auto* const part :
         {"AccessDenied: not authorized", "profile 'p'", "arn:aws:iam::1:role/r", "profile 'base'"})
      CHECK(says(denied.error(), part));
    const auto repeated = here.run(assume_role(here.search(), role, base));
    REQUIRE_FALSE(repeated);
    CHECK_FALSE(says(repeated.error(), "base-secret"));
  }

  TEST_CASE("a service that is not well for a moment is asked again") {
    scripted_server server([](const seen_request& request) -> steps {
      if (request.number == 0) return {action::send{answer(503)}};
      return {action::send{answer(200, {}, sts_keys("AssumeRole", "ROLE"))}};
    });
    aws_client here;
    here.variables["AWS_ENDPOINT_URL_STS"] = server.url("");
    CHECK(here.run(assume_role(here.search(), {.arn = "arn:x", .told_by = "p"}, base)));
    CHECK(server.requests().size() == 2);
  }

  TEST_CASE("answers that are none are refused without a word of them") {
    for (const auto& body :
         {std::string("<html>hunter2</html>"), std::string("{}"), std::string(),
          std::string("<AssumeRoleResponse><AssumeRoleResult/></AssumeRoleResponse>"),
          sts_keys("AssumeRole", "ROLE", "soon"), sts_keys("AssumeRole", "A B"),
          std::string("<AssumeRoleResponse><AssumeRoleResult><Credentials><AccessKeyId>hunter2"
                      "</AccessKeyId></Credentials></AssumeRoleResult></AssumeRoleResponse>")}) {
      CAPTURE(body);
      const auto keys = parse_sts_keys(body, "STS at x");
      REQUIRE_FALSE(keys);
      CHECK(keys.error().kind() == errc::protocol_error);
      CHECK(says(keys.error(), "STS at x"));
      CHECK_FALSE(says(keys.error(), "hunter2"));
    }
  }

  TEST_CASE("a web identity is exchanged unsigned, its file read each time") {
    scripted_server server([](const seen_request&) -> steps {
      return {action::send{answer(200, {}, sts_keys("AssumeRoleWithWebIdentity", "WEB"))}};
    });
    aws_client here;
    here.variables["AWS_ENDPOINT_URL_STS"] = server.url("/sts/");
    CHECK_FALSE(here.run(keys_of_web_identity(here.search()))->has_value());
    here.variables["AWS_WEB_IDENTITY_TOKEN_FILE"] = here.home.write("token", "jwt.one\n");
    here.variables["AWS_ROLE_ARN"] = "arn:aws:iam::1:role/r";
    here.variables["AWS_ROLE_SESSION_NAME"] = "pod";
    const auto keys = here.run(keys_of_web_identity(here.search()));
    REQUIRE(keys);
    REQUIRE(keys->has_value());
    CHECK((*keys)->credentials == aws_credentials{"ASIAWEB", "secret-WEB", "token-WEB"});
    here.home.write("token", "jwt.two");
    REQUIRE(here.run(keys_of_web_identity(here.search())));
    const auto requests = server.requests();
    CHECK(requests.at(0).target == "/sts");
    CHECK(
        requests.at(0).body ==
        "Action=AssumeRoleWithWebIdentity&Version=2011-06-15&RoleArn=arn%3Aaws%3Aiam%3A%3A1%3Arole"
        "%2Fr&RoleSessionName=pod&WebIdentityToken=jwt.one");
    CHECK_FALSE(requests.at(0).field("Authorization"));
    CHECK(requests.at(1).body.ends_with("&WebIdentityToken=jwt.two"));
  }

  TEST_CASE("a web identity that is half set, or whose file is wrong, is an error that names it") {
    aws_client here;
    here.variables["AWS_ENDPOINT_URL_STS"] = "http://127.0.0.1:1";
    here.variables["AWS_WEB_IDENTITY_TOKEN_FILE"] = here.home.path("token");
    auto keys = here.run(keys_of_web_identity(here.search()));
    REQUIRE_FALSE(keys);
    CHECK(says(keys.error(), "AWS_ROLE_ARN is not"));
    here.variables["AWS_ROLE_ARN"] = "arn:x";
    keys = here.run(keys_of_web_identity(here.search()));
    REQUIRE_FALSE(keys);
    CHECK(keys.error().kind() == errc::invalid_request);
    CHECK(says(keys.error(), here.home.path("token") + " is not there"));
    for (const auto& text : {std::string(), std::string("a b"), std::string(30'000, 'x')}) {
      here.home.write("token", text);
      keys = here.run(keys_of_web_identity(here.search()));
      REQUIRE_FALSE(keys);
      CHECK(says(keys.error(), "AWS_WEB_IDENTITY_TOKEN_FILE"));
      CHECK(says(keys.error(), here.home.path("token")));
    }
  }

  TEST_CASE("a token in place of its file's path is not repeated") {
    aws_client here;
    here.variables["AWS_ENDPOINT_URL_STS"] = "http://127.0.0.1:1";
    here.variables["AWS_ROLE_ARN"] = "arn:x";
    for (const auto& value : {"hunter2" + std::string(300, 'x'), std::string("/a/hunter2\nx")}) {
      here.variables["AWS_WEB_IDENTITY_TOKEN_FILE"] = value;
      const auto keys = here.run(keys_of_web_identity(here.search()));
      REQUIRE_FALSE(keys);
      CHECK(keys.error().kind() == errc::invalid_request);
      CHECK(says(keys.error(), "AWS_WEB_IDENTITY_TOKEN_FILE"));
      CHECK_FALSE(says(keys.error(), "hunter2"));
    }
  }

  TEST_CASE("a token that the service refuses stays out of the message") {
    scripted_server server([](const seen_request&) -> steps {
      return {action::send{
          answer(400, {}, sts_refusal("ExpiredTokenException", "jwt.hunter2 has run out"))}};
    });
    aws_client here;
    here.variables["AWS_ENDPOINT_URL_STS"] = server.url("");
    here.variables["AWS_WEB_IDENTITY_TOKEN_FILE"] = here.home.write("token", "jwt.hunter2");
    here.variables["AWS_ROLE_ARN"] = "arn:x";
    const auto keys = here.run(keys_of_web_identity(here.search()));
    REQUIRE_FALSE(keys);
    CHECK(keys.error().kind() == errc::access_denied);
    CHECK_FALSE(says(keys.error(), "hunter2"));
    CHECK(says(keys.error(), "token"));
  }

  TEST_CASE("a region that no host can have is refused before anything is sent") {
    aws_client here;
    auto search = here.search();
    search.region = "evil.example/";
    const auto keys = here.run(assume_role(search, {.arn = "arn:x", .told_by = "p"}, base));
    REQUIRE_FALSE(keys);
    CHECK(keys.error().kind() == errc::invalid_request);
    CHECK(says(keys.error(), "AWS_REGION"));
  }
}

}  // namespace
}  // namespace headrace
