#include "storage/s3_store.hpp"

#include "aws_client.hpp"
#include "storage/percent.hpp"
#include "storage_client.hpp"

#include <headrace/coro/async_scope.hpp>
#include <headrace/coro/with.hpp>

#include <doctest/doctest.h>
#include <support/checkpoint.hpp>
#include <support/scripted_server.hpp>

#include <algorithm>
#include <ctime>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <thread>
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

std::string signer_of(const seen_request& request) {
  const auto authorization = request.field("Authorization").value_or("");
  const auto at = authorization.find("Credential=");
  if (at == std::string::npos) return "nobody";
  return authorization.substr(at + 11, authorization.find('/', at) - at - 11);
}

std::string signed_fields_of(const seen_request& request) {
  const auto authorization = request.field("Authorization").value_or("");
  const auto at = authorization.find("SignedHeaders=");
  return authorization.substr(at + 14, authorization.find(',', at) - at - 14);
}

/// A store whose keys come from an environment of the test's own.
struct s3_client : test::aws_client {
  storage_options options;

  explicit s3_client(const scripted_server& server) {
    options.endpoint = server.url("");
    options.region = "eu-west-1";
  }
  void write_keys(const std::string& id) const {
    home.write(".aws/credentials",
               "[default]\naws_access_key_id = " + id + "\naws_secret_access_key = hunter2\n");
  }
  std::shared_ptr<object_store> store(const std::string& location) {
    auto opened = open_s3_store(uri::parse(location).value(), options, lookup);
    REQUIRE_MESSAGE(opened, (opened ? "" : opened.error().what()));
    return *opened;
  }
  std::shared_ptr<range_source> model(const std::string& name = "x.safetensors") {
    return store("s3://models/" + name)->source(name);
  }
};

task<void> read_into(range_source* from, storage_loop* loop, const transfer* terms,
                     std::uint64_t begin, std::string* into) {
  buffer_sink sink(std::as_writable_bytes(std::span(*into)));
  auto done = co_await from->read(*loop, *terms, {begin, into->size()}, sink);
  if (!done) *into = done.error().what();
}

task<void> read_all(range_source* from, storage_loop* loop, const transfer* terms,
                    std::vector<std::string>* into) {
  async_scope scope;
  for (std::size_t i = 0; i < into->size(); ++i)
    scope.spawn(loop->context, read_into(from, loop, terms, 1'000 * i, &into->at(i)));
  co_await scope.join();
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

  TEST_CASE("all that lies under a prefix is listed without a delimiter, folders left out") {
    scripted_server server([](const seen_request&) -> steps {
      return {action::send{
          answer(200, {},
                 "<ListBucketResult><IsTruncated>false</IsTruncated>"
                 "<Contents><Key>m/</Key><Size>0</Size></Contents>"
                 "<Contents><Key>m/sub/</Key><Size>0</Size></Contents>"
                 "<Contents><Key>m/sub/deep/b</Key><Size>7</Size></Contents>"
                 "<Contents><Key>m/a</Key><Size>5</Size></Contents></ListBucketResult>")}};
    });
    storage_client here;
    auto store = open_store("s3://models/m", options_for(server));
    REQUIRE(store);
    const auto listed = here.run((*store)->list_all(here.services, here.terms));
    REQUIRE_MESSAGE(listed, (listed ? "" : listed.error().what()));
    CHECK(*listed == std::vector<object_entry>{{"a", 5}, {"sub/deep/b", 7}});
    CHECK(server.requests().front().target.find("delimiter") == std::string::npos);
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

  TEST_CASE("keys that a store says have run out are fetched anew, once") {
    for (const auto* const code : {"ExpiredToken", "ExpiredTokenException", "InvalidToken"}) {
      CAPTURE(code);
      std::optional<s3_client> here;
      scripted_server server([&](const seen_request& request) -> steps {
        if (signer_of(request) == "AKIDNEW") return {action::send{answer_with(object, request)}};
        here->write_keys("AKIDNEW");
        return {action::send{answer(400, {}, error_body(code))}};
      });
      here.emplace(server);
      here->write_keys("AKIDOLD");
      const auto source = here->model();
      CHECK(here->open(*source));
      CHECK(here->read(*source, 70'000, 1'000));
      REQUIRE(server.requests().size() == 3);
      CHECK(signer_of(server.requests()[0]) == "AKIDOLD");
    }
  }

  TEST_CASE("keys that have run out for good are an error that says whose they are") {
    scripted_server server([](const seen_request&) -> steps {
      return {action::send{answer(400, {}, error_body("ExpiredToken"))}};
    });
    s3_client here(server);
    here.write_keys("AKIDOLD");
    const auto opened = here.open(*here.model());
    REQUIRE_FALSE(opened);
    CHECK(opened.error().kind() == errc::access_denied);
    CHECK(says(opened.error(), "ExpiredToken"));
    CHECK(says(opened.error(), "profile 'default' in " + here.home.path(".aws/credentials")));
    CHECK_FALSE(says(opened.error(), "hunter2"));
    CHECK_FALSE(says(opened.error(), "AKIDOLD"));
    CHECK(server.requests().size() == 2);
  }

  TEST_CASE("many requests refused with the same old keys fetch new ones once") {
    scripted_server container([](const seen_request& request) -> steps {
      return {action::send{answer(
          200, {}, test::json_keys(request.number == 0 ? "OLD" : "NEW", "2040-01-01T00:00:00Z"))}};
    });
    std::size_t refused = 0;
    scripted_server server([&refused](const seen_request& request) -> steps {
      if (request.number == 0 || signer_of(request) == "ASIANEW")
        return {action::send{answer_with(object, request)}};
      // All are signed before the first of them is refused.
      if (++refused < 4)
        return {action::wait_for{"all"}, action::send{answer(400, {}, error_body("ExpiredToken"))}};
      return {action::signal{"all"}, action::send{answer(400, {}, error_body("ExpiredToken"))}};
    });
    s3_client here(server);
    here.variables["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = container.url("/");
    const auto source = here.model();
    REQUIRE(here.open(*source));
    std::vector<std::string> parts(4, std::string(1'000, '\0'));
    here.run(read_all(source.get(), &here.services, &here.terms, &parts));
    for (std::size_t i = 0; i < parts.size(); ++i)
      CHECK(parts[i] == object.substr(1'000 * i, 1'000));
    CHECK(container.requests().size() == 2);
    CHECK(server.requests().size() == 9);
  }

  TEST_CASE("many requests that learn the bucket's region at once all go there") {
    for (const int status : {301, 400, 403}) {
      CAPTURE(status);
      std::size_t refused = 0;
      scripted_server server([&refused, status](const seen_request& request) -> steps {
        if (request.number == 0 || region_of(request) == "us-west-2")
          return {action::send{answer_with(object, request)}};
        const auto refusal =
            answer(status, {{"x-amz-bucket-region", "us-west-2"}}, error_body("AccessDenied"));
        if (++refused < 4) return {action::wait_for{"all"}, action::send{refusal}};
        return {action::signal{"all"}, action::send{refusal}};
      });
      storage_client here;
      const auto source =
          storage_client::source("s3://models/x.safetensors", "x.safetensors", options_for(server));
      REQUIRE(here.open(*source));
      std::vector<std::string> parts(4, std::string(1'000, '\0'));
      here.run(read_all(source.get(), &here.services, &here.terms, &parts));
      for (std::size_t i = 0; i < parts.size(); ++i)
        CHECK(parts[i] == object.substr(1'000 * i, 1'000));
      CHECK(server.requests().size() == 9);
    }
  }

  TEST_CASE("whoever asks for it pays, with a signature that covers it") {
    scripted_server server([](const seen_request& request) -> steps {
      return {action::send{answer_with(object, request)}};
    });
    storage_client here;
    auto options = options_for(server);
    options.requester_pays = true;
    options.credentials->session_token = "session";
    options.headers = {{"X-Amz-Meta", "mine"}, {"X-Other", "not covered"}};
    REQUIRE(
        here.open(*storage_client::source("s3://models/x.safetensors", "x.safetensors", options)));
    options.credentials.reset();
    options.anonymous = true;
    REQUIRE(
        here.open(*storage_client::source("s3://models/x.safetensors", "x.safetensors", options)));
    const auto requests = server.requests();
    CHECK(requests.at(0).field("x-amz-request-payer") == "requester");
    CHECK(signed_fields_of(requests.at(0)) ==
          "host;x-amz-content-sha256;x-amz-date;x-amz-meta;x-amz-request-payer;"
          "x-amz-security-token");
    CHECK_FALSE(requests.at(1).field("x-amz-request-payer"));
    CHECK_FALSE(requests.at(1).field("Authorization"));
  }

  TEST_CASE("a version that the URI names is asked for, of that object alone") {
    scripted_server server([](const seen_request& request) -> steps {
      return {action::send{answer_with(object, request)}};
    });
    storage_client here;
    auto store = open_store("s3://models/m/x.safetensors?versionId=a+b", options_for(server));
    REQUIRE(store);
    REQUIRE(here.open(*(*store)->source("x.safetensors")));
    REQUIRE(here.open(*(*store)->source("config.json")));
    CHECK(server.requests().at(0).target == "/models/m/x.safetensors?versionId=a%2Bb");
    CHECK(server.requests().at(1).target == "/models/m/config.json");
  }

  TEST_CASE("a refusal of what was not signed says where keys were looked for") {
    scripted_server server([](const seen_request&) -> steps {
      return {action::send{answer(403, {}, error_body("AccessDenied"))}};
    });
    s3_client here(server);
    auto opened = here.open(*here.model());
    REQUIRE_FALSE(opened);
    CHECK(opened.error().kind() == errc::access_denied);
    for (const auto* const part :
         {"AWS_ACCESS_KEY_ID", "profile 'default'", "AWS_WEB_IDENTITY_TOKEN_FILE",
          "AWS_CONTAINER_CREDENTIALS_FULL_URI", "the instance metadata service", "AWS_PROFILE"})
      CHECK_MESSAGE(says(opened.error(), part), part);
    here.options.anonymous = true;
    opened = here.open(*here.model());
    REQUIRE_FALSE(opened);
    CHECK(says(opened.error(), "storage.anonymous"));
  }

  TEST_CASE("endpoint and region may be the profile's") {
    scripted_server server([](const seen_request& request) -> steps {
      return {action::send{answer_with(object, request)}};
    });
    s3_client here(server);
    here.options.endpoint.clear();
    here.options.region.clear();
    here.options.profile = "p";
    here.home.write(".aws/config",
                    "[profile p]\nregion = ap-south-1\nendpoint_url = " + server.url("/base") +
                        "\naws_access_key_id = AKIDP\n"
                        "aws_secret_access_key = s\n");
    REQUIRE(here.open(*here.model()));
    CHECK(server.requests().at(0).target == "/base/models/x.safetensors");
    CHECK(region_of(server.requests().at(0)) == "ap-south-1");
    CHECK(signer_of(server.requests().at(0)) == "AKIDP");
  }

  TEST_CASE("a profile that is not there fails the first request, before anything is sent") {
    scripted_server server([](const seen_request& request) -> steps {
      return {action::send{answer_with(object, request)}};
    });
    s3_client here(server);
    here.options.profile = "nobody";
    const auto opened = here.open(*here.model());
    REQUIRE_FALSE(opened);
    CHECK(opened.error().kind() == errc::invalid_request);
    CHECK(says(opened.error(), "'nobody'"));
    CHECK(says(opened.error(), "s3://models/x.safetensors"));
    CHECK(server.requests().empty());
  }

  TEST_CASE("keys are told by where they are from and their last letters") {
    scripted_server server([](const seen_request&) -> steps { return {}; });
    s3_client here(server);
    here.variables["AWS_ACCESS_KEY_ID"] = "AKIDEXAMPLE1234";
    here.variables["AWS_SECRET_ACCESS_KEY"] = "hunter2";
    const auto store = here.store("s3://models/m");
    const auto report = here.run(store->credentials(here.services));
    REQUIRE(report);
    CHECK(report->source == "the variables AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY");
    CHECK(report->identity == "…1234");
    CHECK_FALSE(report->expires.has_value());
    using details = decltype(report->details);
    CHECK(report->details == details{{"region", "eu-west-1"}, {"endpoint", server.url("")}});
    CHECK(server.requests().empty());
  }

  TEST_CASE("keys of a store are encoded once, in paths and in listings, and nothing is tidied") {
    const std::vector<std::string> names = {"a b.safetensors", "a+b.safetensors",
                                            "a%20b.safetensors", "\xc3\xa9\xe9\x87\x8d.safetensors",
                                            "a&b=c?d#e.safetensors"};
    const std::string prefix = "odd //x/../+%/";
    scripted_server server([&](const seen_request& request) -> steps {
      if (request.target.find("list-type=2") == std::string::npos)
        return {action::send{answer_with(object, request)}};
      std::string body = "<ListBucketResult><EncodingType>url</EncodingType>";
      for (const auto& name : names) {
        body += "<Contents><Key>" + percent_encode(prefix + name, slash::encoded) +
                "</Key><Size>1</Size></Contents>";
      }
      return {action::send{
          answer(200, {}, body + "<IsTruncated>false</IsTruncated></ListBucketResult>")}};
    });
    storage_client here;
    auto store = open_store("s3://models/" + prefix, options_for(server));
    REQUIRE(store);
    const auto listed = here.run((*store)->list(here.services, here.terms));
    REQUIRE_MESSAGE(listed, (listed ? "" : listed.error().what()));
    REQUIRE(listed->size() == names.size());
    for (const auto& entry : *listed) {
      CHECK(std::find(names.begin(), names.end(), entry.name) != names.end());
      CHECK(here.open(*(*store)->source(entry.name)));
      CHECK(server.requests().back().target ==
            "/models/odd%20//x/../%2B%25/" + percent_encode(entry.name, slash::encoded));
    }
    CHECK(
        server.requests().front().target ==
        "/models?delimiter=%2F&encoding-type=url&list-type=2&prefix=odd%20%2F%2Fx%2F..%2F%2B%25%2F");
  }

  TEST_CASE("a listing of 2,500 keys is read page by page") {
    scripted_server server([](const seen_request& request) -> steps {
      const auto at = request.target.find("continuation-token=");
      const std::size_t first =
          at == std::string::npos ? 0 : std::stoul(request.target.substr(at + 19));
      const std::size_t last = std::min<std::size_t>(first + 1'000, 2'500);
      std::string body = "<ListBucketResult><IsTruncated>" +
                         std::string(last < 2'500 ? "true" : "false") + "</IsTruncated>";
      if (last < 2'500)
        body += "<NextContinuationToken>" + std::to_string(last) + "</NextContinuationToken>";
      for (std::size_t i = first; i < last; ++i) {
        body += "<Contents><Key>m/" + std::to_string(100'000 + i) + "</Key><Size>" +
                std::to_string(i) + "</Size></Contents>";
      }
      return {action::send{answer(200, {}, body + "</ListBucketResult>")}};
    });
    storage_client here;
    auto store = open_store("s3://models/m", options_for(server));
    REQUIRE(store);
    const auto listed = here.run((*store)->list(here.services, here.terms));
    REQUIRE_MESSAGE(listed, (listed ? "" : listed.error().what()));
    REQUIRE(listed->size() == 2'500);
    for (std::size_t i = 0; i < listed->size(); ++i)
      CHECK((*listed)[i] == object_entry{std::to_string(100'000 + i), i});
    CHECK(server.requests().size() == 3);
  }

  TEST_CASE("a stop while keys are fetched ends the request, and the next one fetches them") {
    scripted_server container([](const seen_request& request) -> steps {
      if (request.number == 0) return {action::stall{}};
      return {action::send{answer(200, {}, test::json_keys("TASK", "2040-01-01T00:00:00Z"))}};
    });
    scripted_server server([](const seen_request& request) -> steps {
      return {action::send{answer_with(object, request)}};
    });
    s3_client here(server);
    here.variables["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = container.url("/");
    const auto source = here.model();
    std::stop_source stop;
    std::jthread stopper([&] {
      CHECK(container.wait_for_requests(1));
      stop.request_stop();
    });
    std::string first(1'000, '\0');
    const auto stopped = here.run(with_stop(
        stop.get_token(),
        source->open(here.services, here.terms, std::as_writable_bytes(std::span(first)))));
    REQUIRE_FALSE(stopped);
    CHECK(stopped.error().kind() == errc::cancelled);
    CHECK(server.requests().empty());
    CHECK(here.open(*source));
    CHECK(signer_of(server.requests().at(0)) == "ASIATASK");
  }
}

}  // namespace
}  // namespace headrace
