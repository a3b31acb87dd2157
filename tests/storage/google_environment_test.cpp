#include "storage/google_environment.hpp"

#include "given_variables.hpp"

#include <doctest/doctest.h>

#include <string>
#include <vector>

namespace headrace {
namespace {

using test::given;

TEST_SUITE("unit") {
  TEST_CASE(
      "an empty environment leads to Google, by the well-known file and the metadata server") {
    const auto read = read_google_settings({}, given({{"HOME", "/home/me"}}));
    REQUIRE(read);
    CHECK(read->endpoint.origin == http_origin{"https", "storage.googleapis.com", 443});
    CHECK_FALSE(read->anonymous);
    CHECK(read->named_file.empty());
    CHECK(read->well_known_file == "/home/me/.config/gcloud/application_default_credentials.json");
    CHECK(read->asks_metadata);
    CHECK_FALSE(read->metadata_named);
    CHECK(read->metadata.host == "169.254.169.254");
  }

  TEST_CASE("an emulator is found with a scheme and without, and gets no credentials") {
    for (const char* const host : {"127.0.0.1:4443", "http://127.0.0.1:4443",
                                   "http://127.0.0.1:4443/", "127.0.0.1:4443/storage/v1/"}) {
      CAPTURE(host);
      const auto read = read_google_settings(
          {}, given({{"STORAGE_EMULATOR_HOST", host}, {"GOOGLE_APPLICATION_CREDENTIALS", "/x"}}));
      REQUIRE(read);
      CHECK(read->endpoint.origin == http_origin{"http", "127.0.0.1", 4443});
      CHECK(read->endpoint.path.empty());
      CHECK(read->anonymous);
      CHECK(read->anonymous_reason == "STORAGE_EMULATOR_HOST is set");
    }
  }

  TEST_CASE("options beat the environment") {
    storage_options options;
    options.endpoint = "https://private.example.com/base/";
    options.token = "ya29.token";
    const auto read =
        read_google_settings(options, given({{"STORAGE_EMULATOR_HOST", "127.0.0.1:1"},
                                             {"GOOGLE_APPLICATION_CREDENTIALS", "/x"}}));
    REQUIRE(read);
    CHECK(read->endpoint.origin.host == "private.example.com");
    CHECK(read->endpoint.path == "/base");
    CHECK(read->token == "ya29.token");
    CHECK_FALSE(read->anonymous);
    CHECK(read->named_file.empty());
    options.token.clear();
    options.anonymous = true;
    const auto anonymous = read_google_settings(options, given({}));
    REQUIRE(anonymous);
    CHECK(anonymous->anonymous);
  }

  TEST_CASE("an endpoint of one's own keeps the environment's credentials") {
    storage_options options;
    options.endpoint = "https://private.example.com";
    const auto read =
        read_google_settings(options, given({{"STORAGE_EMULATOR_HOST", "127.0.0.1:1"},
                                             {"GOOGLE_APPLICATION_CREDENTIALS", "/x"}}));
    REQUIRE(read);
    CHECK_FALSE(read->anonymous);
    CHECK(read->named_file == "/x");
  }

  TEST_CASE("the places of files, the metadata server and the project come from their variables") {
    const auto read = read_google_settings({}, given({{"CLOUDSDK_CONFIG", "/config"},
                                                      {"HOME", "/home/me"},
                                                      {"GCE_METADATA_HOST", "meta.local:8080"},
                                                      {"GOOGLE_CLOUD_PROJECT", "mine"}}));
    REQUIRE(read);
    CHECK(read->well_known_file == "/config/application_default_credentials.json");
    CHECK(read->metadata_named);
    CHECK(read->metadata == http_origin{"http", "meta.local", 8080});
    CHECK(read->project == "mine");
    const auto quota = read_google_settings({}, given({{"GOOGLE_CLOUD_PROJECT", "mine"},
                                                       {"GOOGLE_CLOUD_QUOTA_PROJECT", "payer"},
                                                       {"NO_GCE_CHECK", "True"}}));
    REQUIRE(quota);
    CHECK(quota->project == "payer");
    CHECK_FALSE(quota->asks_metadata);
    CHECK(quota->well_known_file.empty());
  }

  TEST_CASE("what cannot be used is named, and not repeated") {
    struct wrong {
      const char* name;
      const char* value;
    };
    for (const auto& [name, value] : std::vector<wrong>{
             {"STORAGE_EMULATOR_HOST", "ftp://secret"},
             {"STORAGE_EMULATOR_HOST", "http://u:secret@h"},
             {"GCE_METADATA_HOST", "http://secret"},
             {"GCE_METADATA_HOST", "host/secret"},
             {"GOOGLE_CLOUD_PROJECT", "a secret\nb"},
         }) {
      CAPTURE(name);
      CAPTURE(value);
      const auto refused = read_google_settings({}, given({{name, value}}));
      REQUIRE_FALSE(refused);
      CHECK(refused.error().kind() == errc::invalid_request);
      const std::string said = refused.error().what();
      CHECK(said.find(name) != std::string::npos);
      CHECK(said.find("secret") == std::string::npos);
    }
    storage_options options;
    options.token = "two secret-words";
    const auto token = read_google_settings(options, given({}));
    REQUIRE_FALSE(token);
    CHECK(std::string(token.error().what()).find("storage.token") != std::string::npos);
    CHECK(std::string(token.error().what()).find("secret") == std::string::npos);
  }
}

}  // namespace
}  // namespace headrace
