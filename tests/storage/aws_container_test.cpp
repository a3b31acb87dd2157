#include "storage/aws_container.hpp"

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
namespace action = test::action;

constexpr const char* relative = "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI";
constexpr const char* full = "AWS_CONTAINER_CREDENTIALS_FULL_URI";
constexpr const char* token = "AWS_CONTAINER_AUTHORIZATION_TOKEN";
constexpr const char* token_file = "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE";

found_aws_keys ask(aws_client& here, const http_origin& agent = {"http", "127.0.0.1", 1}) {
  return here.run(keys_of_container(here.search(), agent));
}

TEST_SUITE("fault") {
  TEST_CASE("without a variable there is no container to ask") {
    aws_client here;
    here.variables[token] = "unused";
    CHECK_FALSE(ask(here)->has_value());
  }

  TEST_CASE("a relative URI is asked of the agent, and beats a full one") {
    scripted_server server([](const seen_request&) -> steps {
      return {action::send{answer(200, {}, json_keys("TASK"))}};
    });
    aws_client here;
    here.variables[relative] = "/v2/credentials/1?x=y";
    here.variables[full] = "http://127.0.0.1:1/";
    const auto keys = ask(here, server.origin());
    REQUIRE_MESSAGE(keys, (keys ? "" : keys.error().what()));
    CHECK((*keys)->credentials == aws_credentials{"ASIATASK", "secret-TASK", "token-TASK"});
    CHECK((*keys)->expires == test::manual_clock::start() + std::chrono::hours(1));
    CHECK((*keys)->source.find(relative) != std::string::npos);
    CHECK(server.requests().at(0).target == "/v2/credentials/1?x=y");
    CHECK_FALSE(server.requests().at(0).field("Authorization"));
    CHECK(aws_container_agent() == http_origin{"http", "169.254.170.2", 80});
  }

  TEST_CASE("a full URI gets the token, that of the file first, read each time") {
    scripted_server server([](const seen_request&) -> steps {
      return {action::send{answer(200, {}, json_keys("POD"))}};
    });
    aws_client here;
    here.variables[full] = server.url("/v1/credentials/");
    here.variables[token] = "Basic one";
    REQUIRE(ask(here));
    here.variables[token_file] = here.home.write("token", "two\n");
    REQUIRE(ask(here));
    here.home.write("token", "three");
    REQUIRE(ask(here));
    const auto requests = server.requests();
    CHECK(requests.at(0).target == "/v1/credentials/");
    CHECK(requests.at(0).field("Authorization") == "Basic one");
    CHECK(requests.at(1).field("Authorization") == "two");
    CHECK(requests.at(2).field("Authorization") == "three");
  }

  TEST_CASE("hosts that may not be asked without TLS are refused before anything is sent") {
    aws_client here;
    here.variables[token] = "hunter2";
    for (const auto* const url :
         {"http://example.com/", "http://169.254.169.254/", "http://10.0.0.1/", "http://[::2]/",
          "http://169.254.170.2.example.com/", "http://127.0.0.1.example.com/", "ftp://127.0.0.1/",
          "http://user:hunter2@127.0.0.1/", "nothing"}) {
      CAPTURE(url);
      here.variables[full] = url;
      const auto keys = ask(here);
      REQUIRE_FALSE(keys);
      CHECK(keys.error().kind() == errc::invalid_request);
      CHECK(says(keys.error(), full));
      CHECK_FALSE(says(keys.error(), "hunter2"));
    }
    here.variables[relative] = "no/path";
    const auto keys = ask(here);
    REQUIRE_FALSE(keys);
    CHECK(says(keys.error(), relative));
  }

  TEST_CASE("a token that is not there or cannot be sent is an error that names its variable") {
    aws_client here;
    here.variables[full] = "http://127.0.0.1:1/";
    here.variables[token] = "hunter2\r\nX: y";
    auto keys = ask(here);
    REQUIRE_FALSE(keys);
    CHECK(says(keys.error(), token));
    CHECK_FALSE(says(keys.error(), "hunter2"));
    here.variables[token_file] = here.home.path("missing");
    keys = ask(here);
    REQUIRE_FALSE(keys);
    CHECK(says(keys.error(), here.home.path("missing")));
    here.variables[token_file] = "hunter2" + std::string(300, 'x');
    keys = ask(here);
    REQUIRE_FALSE(keys);
    CHECK(says(keys.error(), token_file));
    CHECK_FALSE(says(keys.error(), "hunter2"));
    here.variables[token_file] = here.home.write("empty", "\n");
    keys = ask(here);
    REQUIRE_FALSE(keys);
    CHECK(says(keys.error(), token_file));
  }

  TEST_CASE("refusals, nonsense and silence are errors: the container was told of") {
    scripted_server server([](const seen_request& request) -> steps {
      if (request.path() == "/refused") {
        return {action::send{
            answer(403, {}, R"({"code":"AccessDenied","message":"not for hunter2hunter2"})")}};
      }
      if (request.path() == "/role")
        return {action::send{answer(400, {}, R"({"code":"NoRole","message":"none assigned"})")}};
      return {action::send{answer(200, {}, R"({"AccessKeyId":"hunter2"})")}};
    });
    aws_client here;
    here.variables[token] = "hunter2hunter2";
    here.variables[full] = server.url("/refused");
    auto keys = ask(here);
    REQUIRE_FALSE(keys);
    CHECK(keys.error().kind() == errc::access_denied);
    CHECK_FALSE(says(keys.error(), "hunter2"));
    here.variables[full] = server.url("/role");
    keys = ask(here);
    REQUIRE_FALSE(keys);
    CHECK(says(keys.error(), "NoRole: none assigned"));
    here.variables[full] = server.url("/nonsense");
    keys = ask(here);
    REQUIRE_FALSE(keys);
    CHECK(keys.error().kind() == errc::protocol_error);
    CHECK_FALSE(says(keys.error(), "hunter2"));
  }
}

}  // namespace
}  // namespace headrace
