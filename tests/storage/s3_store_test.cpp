#include "storage_client.hpp"

#include <doctest/doctest.h>
#include <support/checkpoint.hpp>
#include <support/scripted_server.hpp>

#include <ctime>
#include <string>
#include <vector>

namespace headrace {
namespace {

using namespace std::chrono_literals;
using test::answer;
using test::answer_with;
using test::says;
using test::scripted_server;
using test::seen_request;
using test::steps;
using test::storage_client;
namespace action = test::action;

const std::string object = test::content_of("object", 300'000);

std::string error_body(const std::string& code, const std::string& more = {}) {
  return "<?xml version=\"1.0\" encoding=\"UTF-8\"?><Error><Code>" + code +
         "</Code><Message>said by the store</Message>" + more +
         "<RequestId>REQ-42</RequestId></Error>";
}

storage_options options_for(const scripted_server& server) {
  storage_options options;
  options.endpoint = server.url("");
  options.region = "eu-west-1";
  options.credentials = aws_credentials{"AKIDEXAMPLE", "wJalrXUtnFEMI-secret", ""};
  return options;
}

std::string region_of(const seen_request& request) {
  const auto authorization = request.field("Authorization").value_or("");
  const auto scope = authorization.find("Credential=");
  std::string rest = authorization.substr(scope);
  for (int slash = 0; slash < 2; ++slash) rest = rest.substr(rest.find('/') + 1);
  return rest.substr(0, rest.find('/'));
}

TEST_SUITE("fault") {
  TEST_CASE("requests are signed, and the pin is sent along") {
    scripted_server server([](const seen_request& request) -> steps {
      return {action::send{answer_with(object, request)}};
    });
    storage_client here;
    const auto source = storage_client::source("s3://models/a b/x.safetensors", "x.safetensors",
                                               options_for(server));
    REQUIRE(here.open(*source));
    REQUIRE(here.read(*source, 100'000, 1'000));
    CHECK(source->uri() == "s3://models/a b/x.safetensors");
    const auto requests = server.requests();
    REQUIRE(requests.size() == 2);
    CHECK(requests[1].target == "/models/a%20b/x.safetensors");
    CHECK(requests[1].field("If-Match") == "\"v1\"");
    CHECK(region_of(requests[1]) == "eu-west-1");
    CHECK(requests[1].field("x-amz-date"));
  }

  TEST_CASE("a refusal says the store's own code and request id, and no secret") {
    scripted_server server([](const seen_request&) -> steps {
      return {action::send{answer(403, {}, error_body("AccessDenied"))}};
    });
    storage_client here;
    const auto source =
        storage_client::source("s3://models/x.safetensors", "x.safetensors", options_for(server));
    const auto opened = here.open(*source);
    REQUIRE_FALSE(opened);
    const error& failed = opened.error();
    CHECK(failed.kind() == errc::access_denied);
    CHECK(says(failed, "said by the store"));
    CHECK(says(failed, "AccessDenied"));
    CHECK(says(failed, "REQ-42"));
    CHECK(says(failed, "s3://models/x.safetensors"));
    CHECK_FALSE(says(failed, "secret"));
    CHECK_FALSE(says(failed, "AKIDEXAMPLE"));
    CHECK(server.requests().size() == 1);
  }

  TEST_CASE("SlowDown and InternalError pass; NoSuchKey does not") {
    scripted_server server([](const seen_request& request) -> steps {
      if (request.path() == "/models/missing.safetensors")
        return {action::send{answer(404, {}, error_body("NoSuchKey"))}};
      if (request.number == 0) return {action::send{answer(503, {}, error_body("SlowDown"))}};
      if (request.number == 1) return {action::send{answer(500, {}, error_body("InternalError"))}};
      if (request.number == 2) return {action::send{answer(400, {}, error_body("RequestTimeout"))}};
      return {action::send{answer_with(object, request)}};
    });
    storage_client here;
    const auto source =
        storage_client::source("s3://models/x.safetensors", "x.safetensors", options_for(server));
    CHECK(here.open(*source));
    CHECK(here.retries() == 3);
    const auto missing = storage_client::source("s3://models/missing.safetensors",
                                                "missing.safetensors", options_for(server));
    const auto opened = here.open(*missing);
    REQUIRE_FALSE(opened);
    CHECK(opened.error().kind() == errc::not_found);
    CHECK(says(opened.error(), "NoSuchKey"));
  }

  TEST_CASE("the bucket's region is learned from a refusal and remembered") {
    const std::vector<std::string> refusals = {
        answer(301, {{"x-amz-bucket-region", "us-west-2"}}, error_body("PermanentRedirect")),
        answer(307, {{"x-amz-bucket-region", "us-west-2"}, {"Location", "http://127.0.0.1:1/"}}),
        answer(400, {}, error_body("AuthorizationHeaderMalformed", "<Region>us-west-2</Region>")),
        answer(403, {{"x-amz-bucket-region", "us-west-2"}}, error_body("AccessDenied")),
    };
    for (const auto& refusal : refusals) {
      CAPTURE(refusal.substr(0, refusal.find("\r\n")));
      scripted_server server([&refusal](const seen_request& request) -> steps {
        if (region_of(request) != "us-west-2") return {action::send{refusal}};
        return {action::send{answer_with(object, request)}};
      });
      storage_client here;
      const auto source =
          storage_client::source("s3://models/x.safetensors", "x.safetensors", options_for(server));
      CHECK(here.open(*source));
      CHECK(here.read(*source, 70'000, 1'000));
      CHECK(server.requests().size() == 3);
      CHECK(here.retries() == 0);
    }
  }

  TEST_CASE("a bucket whose region leads in a circle is given up on") {
    scripted_server server([](const seen_request& request) -> steps {
      const bool west = region_of(request) == "us-west-2";
      return {action::send{answer(301, {{"x-amz-bucket-region", west ? "eu-west-1" : "us-west-2"}},
                                  error_body("PermanentRedirect"))}};
    });
    storage_client here;
    const auto source =
        storage_client::source("s3://models/x.safetensors", "x.safetensors", options_for(server));
    const auto opened = here.open(*source);
    REQUIRE_FALSE(opened);
    CHECK(opened.error().kind() == errc::protocol_error);
    CHECK(server.requests().size() <= 6);
  }

  TEST_CASE("a refusal in the region that was asked is final") {
    scripted_server server([](const seen_request&) -> steps {
      return {action::send{
          answer(403, {{"x-amz-bucket-region", "eu-west-1"}}, error_body("AccessDenied"))}};
    });
    storage_client here;
    const auto source =
        storage_client::source("s3://models/x.safetensors", "x.safetensors", options_for(server));
    CHECK(here.open(*source).error().kind() == errc::access_denied);
    CHECK(server.requests().size() == 1);
  }

  TEST_CASE("a clock that is wrong is corrected once, by the store's own") {
    scripted_server server([](const seen_request& request) -> steps {
      // The store lives in the year 2040.
      const auto date = request.field("x-amz-date").value_or("");
      if (date.starts_with("2040")) return {action::send{answer_with(object, request)}};
      return {action::send{answer(403, {{"Date", "Sun, 15 Jan 2040 12:00:00 GMT"}},
                                  error_body("RequestTimeTooSkewed"))}};
    });
    storage_client here;
    here.terms.limits.retries = 0;
    const auto source =
        storage_client::source("s3://models/x.safetensors", "x.safetensors", options_for(server));
    CHECK(here.open(*source));
    CHECK(here.read(*source, 70'000, 1'000));
    CHECK(server.requests().size() == 3);

    scripted_server never([](const seen_request&) -> steps {
      return {action::send{answer(403, {{"Date", "Sun, 15 Jan 2040 12:00:00 GMT"}},
                                  error_body("RequestTimeTooSkewed"))}};
    });
    const auto other =
        storage_client::source("s3://models/x.safetensors", "x.safetensors", options_for(never));
    CHECK(here.open(*other).error().kind() == errc::access_denied);
    CHECK(never.requests().size() == 2);
  }

  TEST_CASE("credentials do not follow a redirect to another host") {
    scripted_server elsewhere([](const seen_request& request) -> steps {
      return {action::send{answer_with(object, request)}};
    });
    scripted_server server([&](const seen_request&) -> steps {
      return {action::send{answer(302, {{"Location", elsewhere.url("/x?sig=1")}})}};
    });
    storage_client here;
    auto options = options_for(server);
    options.headers = {{"X-Token", "hunter2"}};
    options.credentials->session_token = "session-secret";
    const auto source =
        storage_client::source("s3://models/x.safetensors", "x.safetensors", options);
    REQUIRE(here.open(*source));
    REQUIRE(elsewhere.requests().size() == 1);
    for (const char* const name :
         {"Authorization", "X-Token", "x-amz-security-token", "x-amz-date"}) {
      CHECK_FALSE(elsewhere.requests()[0].field(name));
    }
  }

  TEST_CASE("a listing comes in pages, each of them retried") {
    scripted_server server([](const seen_request& request) -> steps {
      if (request.number % 2 == 0) return {action::send{answer(503, {}, error_body("SlowDown"))}};
      const bool second =
          request.target.find("continuation-token=next%2Fpage") != std::string::npos;
      const std::string body =
          second
              ? "<ListBucketResult><IsTruncated>false</IsTruncated><Contents><Key>m/a.safetensors</Key><Size>5</Size></Contents>"
                "<Contents><Key>other/x</Key><Size>5</Size></Contents></ListBucketResult>"
              : "<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>next/page</NextContinuationToken>"
                "<Contents><Key>m/</Key><Size>0</Size></Contents>"
                "<Contents><Key>m/b.safetensors</Key><Size>7</Size></Contents></ListBucketResult>";
      return {action::send{answer(200, {}, body)}};
    });
    storage_client here;
    auto store = open_store("s3://models/m", options_for(server));
    REQUIRE(store);
    const auto listed = here.run((*store)->list(here.services, here.terms));
    REQUIRE_MESSAGE(listed, (listed ? "" : listed.error().what()));
    CHECK(*listed == std::vector<object_entry>{{"a.safetensors", 5}, {"b.safetensors", 7}});
    CHECK(server.requests().size() == 4);
    CHECK(here.retries() == 2);
  }

  TEST_CASE("a listing that is cut is asked for again, one that is none is refused") {
    const std::string body =
        "<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>";
    scripted_server server([&body](const seen_request& request) -> steps {
      const auto whole = answer(200, {}, body);
      if (request.number == 0)
        return {action::send{whole.substr(0, whole.size() - 5)}, action::close{}};
      if (request.number == 1) return {action::send{whole}};
      return {action::send{answer(200, {}, "<html>a captive portal</html>")}};
    });
    storage_client here;
    auto store = open_store("s3://models/m", options_for(server));
    REQUIRE(store);
    const auto listed = here.run((*store)->list(here.services, here.terms));
    REQUIRE(listed);
    CHECK(listed->empty());
    const auto refused = here.run((*store)->list(here.services, here.terms));
    REQUIRE_FALSE(refused);
    CHECK(refused.error().kind() == errc::protocol_error);
  }
}

}  // namespace
}  // namespace headrace
