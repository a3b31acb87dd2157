#include "storage/aws_process.hpp"

#include "aws_client.hpp"

#include <doctest/doctest.h>

namespace headrace {
namespace {

using test::aws_client;
using test::says;

result<aws_keys> ask(aws_client& here, const std::string& command,
                     std::chrono::milliseconds limit = std::chrono::seconds(30)) {
  return here.run(keys_of_process(here.search(), command, "profile 'p'", limit));
}

std::string printing(const std::string& json) { return "printf %s '" + json + "'"; }

TEST_SUITE("fault") {
  TEST_CASE("a program's keys are used, with or without an end") {
    aws_client here;
    auto keys = ask(
        here,
        printing(R"({"Version":1,"AccessKeyId":"AKIDP","SecretAccessKey":"s","SessionToken":"t",)"
                 R"("Expiration":"2026-01-01T01:00:00Z"})"));
    REQUIRE_MESSAGE(keys, (keys ? "" : keys.error().what()));
    CHECK(keys->credentials == aws_credentials{"AKIDP", "s", "t"});
    CHECK(keys->expires == test::manual_clock::start() + std::chrono::hours(1));
    CHECK(keys->source == "profile 'p', credential_process");
    keys = ask(here, printing(R"({"Version":1,"AccessKeyId":"AKIDP","SecretAccessKey":"s"})"));
    REQUIRE(keys);
    CHECK(keys->credentials == aws_credentials{"AKIDP", "s", ""});
    CHECK_FALSE(keys->expires.has_value());
  }

  TEST_CASE("a program that fails is told by its status, and nothing of what it says") {
    aws_client here;
    const auto keys = ask(here, "sh -c 'echo hunter2; echo hunter2 >&2; exit 3'");
    REQUIRE_FALSE(keys);
    CHECK(keys.error().kind() == errc::access_denied);
    CHECK(says(keys.error(), "profile 'p'"));
    CHECK(says(keys.error(), "status 3"));
    CHECK_FALSE(says(keys.error(), "hunter2"));
  }

  TEST_CASE("what a program writes instead of keys is refused and not repeated") {
    aws_client here;
    const std::vector<std::pair<std::string, errc>> cases = {
        {"hunter2", errc::protocol_error},
        {R"({"AccessKeyId":"hunter2","SecretAccessKey":"s"})", errc::protocol_error},
        {R"({"Version":2,"AccessKeyId":"hunter2","SecretAccessKey":"s"})", errc::unsupported},
        {R"({"Version":1,"AccessKeyId":"hunter2"})", errc::protocol_error},
        {R"({"Version":1,"AccessKeyId":"hunter2","SecretAccessKey":"s","Expiration":"soon"})",
         errc::protocol_error},
        {R"({"Version":1,"AccessKeyId":"hunter2","SecretAccessKey":"s","Expiration":"2025-01-01T00:00:00Z"})",
         errc::access_denied},
    };
    for (const auto& [text, kind] : cases) {
      CAPTURE(text);
      const auto keys = ask(here, printing(text));
      REQUIRE_FALSE(keys);
      CHECK(keys.error().kind() == kind);
      CHECK(says(keys.error(), "profile 'p', credential_process"));
      CHECK_FALSE(says(keys.error(), "hunter2"));
    }
  }

  TEST_CASE("a program that is not there, or has no end, is an error") {
    aws_client here;
    auto keys = ask(here, "/no/such/program --x");
    REQUIRE_FALSE(keys);
    CHECK(keys.error().kind() == errc::invalid_request);
    CHECK(says(keys.error(), "/no/such/program"));
    keys = ask(here, "sleep 1000", std::chrono::milliseconds(50));
    REQUIRE_FALSE(keys);
    CHECK(keys.error().kind() == errc::timeout);
    for (const auto* const command : {"", "  ", "'unfinished"}) {
      keys = ask(here, command);
      REQUIRE_FALSE(keys);
      CHECK(keys.error().kind() == errc::invalid_request);
    }
  }
}

}  // namespace
}  // namespace headrace
