#include "storage/aws_instance.hpp"

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

const std::string roles = "/latest/meta-data/iam/security-credentials/";

/// The service as it is, with a role.
steps well(const seen_request& request) {
  if (request.method == "PUT" && request.target == "/latest/api/token")
    return {action::send{answer(200, {}, "TOKEN-1")}};
  if (request.field("x-aws-ec2-metadata-token") != "TOKEN-1") return {action::send{answer(401)}};
  if (request.target == roles) return {action::send{answer(200, {}, "my-role\n")}};
  if (request.target == roles + "my-role") return {action::send{answer(200, {}, json_keys("EC2"))}};
  return {action::send{answer(404)}};
}

struct instance_client : aws_client {
  explicit instance_client(const scripted_server& server) {
    variables.erase("AWS_EC2_METADATA_DISABLED");
    variables["AWS_EC2_METADATA_SERVICE_ENDPOINT"] = server.url("/");
  }
  result<aws_instance_keys> ask() { return run(keys_of_instance(search())); }
};

TEST_SUITE("fault") {
  TEST_CASE("the machine's role hands out keys, after a token") {
    scripted_server server(&well);
    instance_client here(server);
    const auto asked = here.ask();
    REQUIRE_MESSAGE(asked, (asked ? "" : asked.error().what()));
    REQUIRE(asked->keys.has_value());
    CHECK(asked->keys->credentials == aws_credentials{"ASIAEC2", "secret-EC2", "token-EC2"});
    CHECK(asked->keys->expires == test::manual_clock::start() + std::chrono::hours(1));
    CHECK(asked->keys->source.find("my-role") != std::string::npos);
    const auto requests = server.requests();
    REQUIRE(requests.size() == 3);
    CHECK(requests[0].field("x-aws-ec2-metadata-token-ttl-seconds") == "21600");
  }

  TEST_CASE("the switch keeps it from being asked") {
    scripted_server server(&well);
    instance_client here(server);
    here.variables["AWS_EC2_METADATA_DISABLED"] = "TRUE";
    const auto asked = here.ask();
    REQUIRE(asked);
    CHECK_FALSE(asked->keys.has_value());
    CHECK(asked->nothing.find("AWS_EC2_METADATA_DISABLED") != std::string::npos);
    CHECK(server.requests().empty());
    here.variables["AWS_EC2_METADATA_DISABLED"] = "perhaps";
    const auto wrong = here.ask();
    REQUIRE_FALSE(wrong);
    CHECK(says(wrong.error(), "AWS_EC2_METADATA_DISABLED"));
  }

  TEST_CASE("a machine without a role has no keys, and that is no error") {
    scripted_server server([](const seen_request& request) -> steps {
      if (request.target == roles) return {action::send{answer(404)}};
      return well(request);
    });
    instance_client here(server);
    const auto asked = here.ask();
    REQUIRE(asked);
    CHECK_FALSE(asked->keys.has_value());
    CHECK(asked->nothing.find("no role") != std::string::npos);
  }

  TEST_CASE("somebody has to be where a variable says, and to be what it says") {
    instance_client here(scripted_server([](const seen_request&) -> steps { return {}; }));
    auto asked = here.ask();
    REQUIRE_FALSE(asked);
    CHECK(asked.error().kind() == errc::connect_error);
    CHECK(says(asked.error(), "AWS_EC2_METADATA_SERVICE_ENDPOINT"));
    scripted_server other([](const seen_request&) -> steps { return {action::send{answer(405)}}; });
    here.variables["AWS_EC2_METADATA_SERVICE_ENDPOINT"] = other.url("");
    asked = here.ask();
    REQUIRE_FALSE(asked);
    CHECK(says(asked.error(), "AWS_EC2_METADATA_SERVICE_ENDPOINT"));
    here.variables["AWS_EC2_METADATA_SERVICE_ENDPOINT"] = "nothing";
    asked = here.ask();
    REQUIRE_FALSE(asked);
    CHECK(says(asked.error(), "AWS_EC2_METADATA_SERVICE_ENDPOINT"));
    here.variables.erase("AWS_EC2_METADATA_SERVICE_ENDPOINT");
    here.variables["AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE"] = "IPv5";
    asked = here.ask();
    REQUIRE_FALSE(asked);
    CHECK(says(asked.error(), "AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE"));
  }

  TEST_CASE("a role whose keys are refused or are none is an error that names it") {
    for (const auto& [status, body] :
         {std::pair{200, std::string(R"({"Code":"AssumeRoleUnauthorizedAccess"})")},
          std::pair{200, std::string(R"({"Code":"Success","AccessKeyId":"hunter2"})")},
          std::pair{200, std::string("hunter2")}, std::pair{403, std::string("hunter2")}}) {
      CAPTURE(body);
      scripted_server server([&status, &body](const seen_request& request) -> steps {
        if (request.target == roles + "my-role") return {action::send{answer(status, {}, body)}};
        return well(request);
      });
      instance_client here(server);
      const auto asked = here.ask();
      REQUIRE_FALSE(asked);
      CHECK(says(asked.error(), "my-role"));
      CHECK_FALSE(says(asked.error(), "hunter2"));
    }
  }

  TEST_CASE("a name of a role cannot lead elsewhere") {
    scripted_server server([](const seen_request& request) -> steps {
      if (request.target == roles) return {action::send{answer(200, {}, "../../x?y#z\nsecond")}};
      if (request.target.starts_with(roles) && request.target != roles)
        return {action::send{answer(200, {}, json_keys("EC2"))}};
      return well(request);
    });
    instance_client here(server);
    REQUIRE(here.ask());
    CHECK(server.requests().at(2).target == roles + "..%2F..%2Fx%3Fy%23z");
  }
}

}  // namespace
}  // namespace headrace
