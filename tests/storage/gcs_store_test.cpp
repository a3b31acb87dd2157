#include "storage/gcs_store.hpp"

#include "given_variables.hpp"
#include "storage_client.hpp"

#include <doctest/doctest.h>
#include <support/checkpoint.hpp>
#include <support/scripted_server.hpp>

#include <atomic>
#include <map>
#include <string>
#include <vector>

namespace headrace {
namespace {

using test::answer;
using test::answer_with;
using test::given;
using test::says;
using test::scripted_server;
using test::seen_request;
using test::steps;
using test::storage_client;
using test::temporary_directory;
namespace action = test::action;

const std::string object = test::content_of("object", 300'000);

/// As Google answers: the generation next to an ETag.
std::string answer_of(const seen_request& request, const std::string& generation,
                      const std::string& bytes = object) {
  std::string whole = answer_with(bytes, request, "\"e" + generation + "\"");
  whole.insert(whole.find("\r\n") + 2, "x-goog-generation: " + generation + "\r\n");
  return whole;
}

std::string error_body(const std::string& code) {
  return "<?xml version='1.0' encoding='UTF-8'?><Error><Code>" + code +
         "</Code><Message>said by the store</Message></Error>";
}

std::shared_ptr<object_store> store_of(const std::string& location, const storage_options& options,
                                       std::map<std::string, std::string> variables = {}) {
  variables.try_emplace("NO_GCE_CHECK", "true");
  const auto parsed = uri::parse(location);
  REQUIRE(parsed);
  auto made = make_gcs_store(*parsed, options, given(std::move(variables)));
  REQUIRE_MESSAGE(made, (made ? "" : made.error().what()));
  return *made;
}

storage_options options_for(const scripted_server& server) {
  storage_options options;
  options.endpoint = server.url("");
  options.token = "ya29.secret-token";
  return options;
}

std::shared_ptr<range_source> source_of(const scripted_server& server) {
  return store_of("gs://models/m/x.safetensors", options_for(server))->source("x.safetensors");
}

TEST_SUITE("fault") {
  TEST_CASE("the generation of the first answer is asked for ever after") {
    scripted_server server([](const seen_request& request) -> steps {
      return {action::send{answer_of(request, "1700000000000001")}};
    });
    storage_client here;
    const auto source =
        store_of("gs://models/a b/+%/x.safetensors", options_for(server))->source("x.safetensors");
    CHECK(source->uri() == "gs://models/a b/+%/x.safetensors");
    REQUIRE(here.open(*source));
    const auto read = here.read(*source, 100'000, 1'000);
    REQUIRE(read);
    CHECK(*read == object.substr(100'000, 1'000));
    const auto requests = server.requests();
    REQUIRE(requests.size() == 2);
    CHECK(requests[0].target == "/models/a%20b/%2B%25/x.safetensors");
    CHECK(requests[1].target == "/models/a%20b/%2B%25/x.safetensors?generation=1700000000000001");
    CHECK(requests[1].field("Range") == "bytes=100000-100999");
    CHECK_FALSE(requests[1].field("If-Match"));
    CHECK(requests[1].field("Authorization") == "Bearer ya29.secret-token");
    CHECK_FALSE(requests[1].field("x-goog-user-project"));
  }

  TEST_CASE("an answer of another generation, or of none, is an object that changed") {
    for (const std::string& other : {std::string("2"), std::string()}) {
      CAPTURE(other);
      scripted_server server([&other](const seen_request& request) -> steps {
        if (request.number == 0) return {action::send{answer_of(request, "1")}};
        return {action::send{other.empty() ? answer_with(object, request, "\"e1\"")
                                           : answer_of(request, other)}};
      });
      storage_client here;
      const auto source = source_of(server);
      REQUIRE(here.open(*source));
      const auto read = here.read(*source, 100'000, 1'000);
      REQUIRE_FALSE(read);
      CHECK(read.error().kind() == errc::object_changed);
      CHECK(says(read.error(), "generation"));
      CHECK(server.requests().size() == 2);
    }
  }

  TEST_CASE("a generation that is gone is an object that changed; a missing object is not found") {
    scripted_server server([](const seen_request& request) -> steps {
      if (request.number == 0) return {action::send{answer_of(request, "1")}};
      return {action::send{answer(404, {}, error_body("NoSuchKey"))}};
    });
    storage_client here;
    const auto source = source_of(server);
    REQUIRE(here.open(*source));
    CHECK(here.read(*source, 100'000, 1'000).error().kind() == errc::object_changed);
    const auto missing = source_of(server);
    const auto opened = here.open(*missing);
    REQUIRE_FALSE(opened);
    CHECK(opened.error().kind() == errc::not_found);
    CHECK(says(opened.error(), "NoSuchKey"));
  }

  TEST_CASE("a range that breaks off goes on at the first missing byte of the same generation") {
    scripted_server server([](const seen_request& request) -> steps {
      const auto whole = answer_of(request, "7");
      if (request.number == 1)
        return {action::send{whole.substr(0, whole.size() - 400)}, action::close{}};
      return {action::send{whole}};
    });
    storage_client here;
    const auto source = source_of(server);
    REQUIRE(here.open(*source));
    const auto read = here.read(*source, 100'000, 1'000);
    REQUIRE(read);
    CHECK(*read == object.substr(100'000, 1'000));
    REQUIRE(server.requests().size() == 3);
    CHECK(server.requests()[2].field("Range") == "bytes=100600-100999");
    CHECK(server.requests()[2].target.ends_with("?generation=7"));
  }

  TEST_CASE("without generations the ETag is the pin") {
    scripted_server server([](const seen_request& request) -> steps {
      return {action::send{answer_with(object, request)}};
    });
    storage_client here;
    const auto source = source_of(server);
    REQUIRE(here.open(*source));
    REQUIRE(here.read(*source, 100'000, 1'000));
    CHECK(server.requests().at(1).field("If-Match") == "\"v1\"");
    CHECK(server.requests().at(1).target == "/models/m/x.safetensors");
  }

  TEST_CASE("a token that is refused is fetched again, once a range") {
    std::atomic<int> granted{0};
    std::atomic<bool> always{false};
    scripted_server tokens([&granted](const seen_request&) -> steps {
      return {action::send{answer(
          200, {{"Metadata-Flavor", "Google"}},
          R"({"access_token":"token-)" + std::to_string(++granted) + R"(","expires_in":3600})")}};
    });
    scripted_server server([&](const seen_request& request) -> steps {
      if (always || request.field("Authorization") == "Bearer token-1")
        return {action::send{answer(401, {}, error_body("AuthenticationRequired"))}};
      return {action::send{answer_of(request, "1")}};
    });
    auto options = options_for(server);
    options.token.clear();
    const auto store =
        store_of("gs://models/m/x.safetensors", options,
                 {{"NO_GCE_CHECK", ""}, {"GCE_METADATA_HOST", tokens.origin().host_field()}});
    storage_client here;
    const auto source = store->source("x.safetensors");
    REQUIRE(here.open(*source));
    REQUIRE(here.read(*source, 100'000, 1'000));
    CHECK(granted == 2);
    CHECK(server.requests().size() == 3);
    always = true;
    const auto refused = here.read(*source, 100'000, 1'000);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().kind() == errc::access_denied);
    CHECK(says(refused.error(), "GCE_METADATA_HOST"));
    CHECK_FALSE(says(refused.error(), "token-"));
    CHECK(granted == 3);
    CHECK(server.requests().size() == 5);
  }

  TEST_CASE("a refusal says whose credentials were refused, or that there were none") {
    scripted_server server([](const seen_request&) -> steps {
      return {action::send{
          answer(403, {{"x-guploader-uploadid", "UPLOAD-1"}}, error_body("AccessDenied"))}};
    });
    storage_client here;
    const auto denied = here.open(*source_of(server));
    REQUIRE_FALSE(denied);
    CHECK(denied.error().kind() == errc::access_denied);
    for (const char* const part :
         {"said by the store", "AccessDenied", "UPLOAD-1", "storage.token", "gs://models/m/x"}) {
      CHECK_MESSAGE(says(denied.error(), part), denied.error().what());
    }
    CHECK_FALSE(says(denied.error(), "secret-token"));
    auto options = options_for(server);
    options.token.clear();
    options.anonymous = true;
    const auto anonymous =
        here.open(*store_of("gs://models/m/x.safetensors", options)->source("x.safetensors"));
    REQUIRE_FALSE(anonymous);
    CHECK(says(anonymous.error(), "GOOGLE_APPLICATION_CREDENTIALS"));
    REQUIRE(server.requests().size() == 2);
    CHECK_FALSE(server.requests()[1].field("Authorization"));
  }

  TEST_CASE("whoever pays as a requester names the project, and is told where that is needed") {
    scripted_server server([](const seen_request& request) -> steps {
      if (!request.field("x-goog-user-project"))
        return {action::send{answer(400, {}, error_body("UserProjectMissing"))}};
      return {action::send{answer_of(request, "1")}};
    });
    storage_client here;
    const auto missing = here.open(*source_of(server));
    REQUIRE_FALSE(missing);
    CHECK(says(missing.error(), "requester_pays"));
    auto options = options_for(server);
    options.requester_pays = true;
    const auto nobody =
        here.open(*store_of("gs://models/m/x.safetensors", options)->source("x.safetensors"));
    REQUIRE_FALSE(nobody);
    CHECK(nobody.error().kind() == errc::invalid_request);
    CHECK(says(nobody.error(), "GOOGLE_CLOUD_PROJECT"));
    const auto store =
        store_of("gs://models/m/x.safetensors", options, {{"GOOGLE_CLOUD_PROJECT", "payer"}});
    REQUIRE(here.open(*store->source("x.safetensors")));
    CHECK(server.requests().back().field("x-goog-user-project") == "payer");
  }

  TEST_CASE("a listing comes in pages, each of them retried") {
    scripted_server server([](const seen_request& request) -> steps {
      if (request.number == 0) return {action::send{answer(503)}};
      const bool second =
          request.target.find("continuation-token=next%2Fpage") != std::string::npos;
      return {action::send{
          answer(200, {},
                 second ? "<ListBucketResult xmlns='http://doc.s3.amazonaws.com/2006-03-01'>"
                          "<IsTruncated>false</IsTruncated><EncodingType>url</EncodingType>"
                          "<Contents><Key>m%2Fa%2Bb.safetensors</Key><Generation>1</Generation>"
                          "<Size>5</Size></Contents></ListBucketResult>"
                        : "<ListBucketResult xmlns='http://doc.s3.amazonaws.com/2006-03-01'>"
                          "<IsTruncated>true</IsTruncated>"
                          "<NextContinuationToken>next/page</NextContinuationToken>"
                          "<CommonPrefixes><Prefix>m/sub/</Prefix></CommonPrefixes>"
                          "<Contents><Key>m/</Key><Size>0</Size></Contents>"
                          "<Contents><Key>m/c.safetensors</Key><Size>7</Size></Contents>"
                          "</ListBucketResult>")}};
    });
    storage_client here;
    const auto store = store_of("gs://models/m/", options_for(server));
    const auto listed = here.run(store->list(here.services, here.terms));
    REQUIRE_MESSAGE(listed, (listed ? "" : listed.error().what()));
    CHECK(*listed == std::vector<object_entry>{{"a+b.safetensors", 5}, {"c.safetensors", 7}});
    const auto requests = server.requests();
    REQUIRE(requests.size() == 3);
    CHECK(requests[1].target == "/models?delimiter=%2F&encoding-type=url&list-type=2&prefix=m%2F");
    CHECK(requests[1].field("Authorization") == "Bearer ya29.secret-token");
  }

  TEST_CASE("all that lies under a prefix is listed without a delimiter") {
    scripted_server server([](const seen_request&) -> steps {
      return {action::send{
          answer(200, {},
                 "<ListBucketResult xmlns='http://doc.s3.amazonaws.com/2006-03-01'>"
                 "<IsTruncated>false</IsTruncated>"
                 "<Contents><Key>m/sub/deep/b</Key><Size>7</Size></Contents>"
                 "<Contents><Key>m/a</Key><Size>5</Size></Contents></ListBucketResult>")}};
    });
    storage_client here;
    const auto store = store_of("gs://models/m/", options_for(server));
    const auto listed = here.run(store->list_all(here.services, here.terms));
    REQUIRE_MESSAGE(listed, (listed ? "" : listed.error().what()));
    CHECK(*listed == std::vector<object_entry>{{"a", 5}, {"sub/deep/b", 7}});
    CHECK(server.requests().back().target == "/models?encoding-type=url&list-type=2&prefix=m%2F");
  }

  TEST_CASE("an endpoint without encryption gets no token") {
    storage_options options;
    options.endpoint = "http://storage.example.com";
    options.token = "ya29.secret-token";
    storage_client here;
    const auto refused =
        here.open(*store_of("gs://models/m/x.safetensors", options)->source("x.safetensors"));
    REQUIRE_FALSE(refused);
    CHECK(refused.error().kind() == errc::invalid_request);
    CHECK(says(refused.error(), "https"));
    CHECK_FALSE(says(refused.error(), "secret-token"));
  }

  TEST_CASE("a token does not follow a redirect to another host") {
    scripted_server elsewhere([](const seen_request& request) -> steps {
      return {action::send{answer_of(request, "1")}};
    });
    scripted_server server([&elsewhere](const seen_request&) -> steps {
      return {action::send{answer(302, {{"Location", elsewhere.url("/x")}})}};
    });
    storage_client here;
    auto options = options_for(server);
    options.headers = {{"X-Mine", "hunter2"}};
    REQUIRE(here.open(*store_of("gs://models/m/x.safetensors", options)->source("x.safetensors")));
    REQUIRE(elsewhere.requests().size() == 1);
    CHECK_FALSE(elsewhere.requests()[0].field("Authorization"));
    CHECK_FALSE(elsewhere.requests()[0].field("X-Mine"));
    CHECK(server.requests().at(0).field("X-Mine") == "hunter2");
  }

  TEST_CASE("the report says which credentials are used, without the secret") {
    storage_client here;
    storage_options options;
    options.token = "ya29.secret-token";
    const auto told = here.run(store_of("gs://models/m", options)->credentials(here.services));
    REQUIRE(told);
    CHECK(told->source == "storage.token");
    CHECK(told->details.at(0).second == "https://storage.googleapis.com:443");
    const auto none = here.run(store_of("gs://models/m", {})->credentials(here.services));
    REQUIRE(none);
    CHECK(none->source == "none: requests are anonymous, since no credentials were found");
    const auto emulator =
        here.run(store_of("gs://models/m", {}, {{"STORAGE_EMULATOR_HOST", "127.0.0.1:1"}})
                     ->credentials(here.services));
    REQUIRE(emulator);
    CHECK(emulator->source == "none: requests are anonymous, since STORAGE_EMULATOR_HOST is set");
    const auto wrong =
        here.run(store_of("gs://models/m", {}, {{"GOOGLE_APPLICATION_CREDENTIALS", "/none/x.json"}})
                     ->credentials(here.services));
    REQUIRE_FALSE(wrong);
    CHECK(says(wrong.error(), "GOOGLE_APPLICATION_CREDENTIALS: /none/x.json"));
  }

  TEST_CASE("a location that is none says what was expected") {
    for (const char* const location :
         {"gs://models", "gs://models/", "gs://models//", "gs://Models/x", "gs://me@models/x",
          "gs://-x/y", "gs://mod els/x"}) {
      CAPTURE(location);
      const auto refused = open_store(location, {});
      REQUIRE_FALSE(refused);
      CHECK(refused.error().kind() == errc::invalid_request);
      CHECK(says(refused.error(), "gs://"));
    }
  }
}

}  // namespace
}  // namespace headrace
