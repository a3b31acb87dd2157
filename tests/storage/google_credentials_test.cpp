#include "storage/google_credentials.hpp"

#include "given_variables.hpp"
#include "rsa_key.hpp"
#include "storage/json_answer.hpp"
#include "storage/percent.hpp"
#include "storage_client.hpp"

#include <boost/json/serialize.hpp>
#include <doctest/doctest.h>
#include <support/checkpoint.hpp>
#include <support/scripted_server.hpp>

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace headrace {
namespace {

using namespace std::chrono_literals;
using test::answer;
using test::given;
using test::says;
using test::scripted_server;
using test::seen_request;
using test::steps;
using test::storage_client;
using test::temporary_directory;
namespace action = test::action;

/// The members of a form.
std::map<std::string, std::string> form_of(std::string_view body) {
  std::map<std::string, std::string> members;
  while (!body.empty()) {
    const auto end = body.find('&');
    const auto member = body.substr(0, end);
    const auto equals = member.find('=');
    members[std::string(member.substr(0, equals))] =
        percent_decode(member.substr(equals + 1)).value_or("?");
    body = end == std::string_view::npos ? std::string_view() : body.substr(end + 1);
  }
  return members;
}

google_settings settings_of(std::map<std::string, std::string> variables) {
  variables.try_emplace("NO_GCE_CHECK", "true");
  auto read = read_google_settings({}, given(std::move(variables)));
  REQUIRE_MESSAGE(read, (read ? "" : read.error().what()));
  return std::move(*read);
}

result<expiring<google_token>> fetch_with(storage_client& here, google_settings settings) {
  const auto source = make_google_token_source(std::move(settings), nullptr);
  return here.run(source->fetch(here.services));
}

result<expiring<google_token>> fetch(storage_client& here,
                                     std::map<std::string, std::string> variables) {
  return fetch_with(here, settings_of(std::move(variables)));
}

const std::string token_answer =
    answer(200, {}, R"({"access_token":"ya29.granted","expires_in":3599,"token_type":"Bearer"})");

std::string user_file(const scripted_server& server) {
  return R"({"type":"authorized_user","client_id":"id-1","client_secret":"hush-hush-1",)"
         R"("refresh_token":"1//refresh+me","quota_project_id":"payer","account":"me@example.com",)"
         R"("token_uri":")" +
         server.url("/token") + R"("})";
}

std::string external_file(const scripted_server& server, const std::string& source,
                          const std::string& more = {}) {
  return R"({"type":"external_account","audience":"//iam.googleapis.com/pool/x",)"
         R"("subject_token_type":"urn:ietf:params:oauth:token-type:jwt","token_url":")" +
         server.url("/sts") + R"(",)" + more + R"("credential_source":)" + source + "}";
}

TEST_SUITE("fault") {
  TEST_CASE("a service account signs its own token, and nobody is asked") {
    const test::rsa_key key;
    const temporary_directory folder;
    folder.write("key.json", boost::json::serialize(boost::json::object{
                                 {"type", "service_account"},
                                 {"client_email", "reader@p.iam.gserviceaccount.com"},
                                 {"private_key_id", "k1"},
                                 {"private_key", key.pem()},
                                 {"project_id", "p"}}));
    storage_client here;
    const auto before = real_clock().wall();
    const auto token =
        fetch(here, {{"GOOGLE_APPLICATION_CREDENTIALS", folder.path_of("key.json")}});
    REQUIRE_MESSAGE(token, (token ? "" : token.error().what()));
    const auto parts = test::parts_of(token->value.bearer);
    REQUIRE(parts.size() == 3);
    CHECK(key.verifies(parts[0] + "." + parts[1], test::from_base64url(parts[2])));
    const auto claims = detail::parse_json_object(test::from_base64url(parts[1]));
    REQUIRE(claims);
    CHECK(detail::string_of(*claims, "iss") == "reader@p.iam.gserviceaccount.com");
    CHECK(detail::string_of(*claims, "scope") ==
          "https://www.googleapis.com/auth/devstorage.read_only");
    CHECK(token->value.identity == "reader@p.iam.gserviceaccount.com");
    CHECK(token->value.project == "p");
    CHECK(token->value.renewable);
    CHECK(token->value.source.starts_with("GOOGLE_APPLICATION_CREDENTIALS: "));
    REQUIRE(token->expires);
    CHECK((*token->expires >= before + 3600s));
    CHECK(token->expires == token->value.expires);
  }

  TEST_CASE("a person's refresh token is exchanged at the file's token service") {
    scripted_server server(
        [](const seen_request&) -> steps { return {action::send{token_answer}}; });
    const temporary_directory folder;
    folder.write("gcloud/application_default_credentials.json", user_file(server));
    storage_client here;
    const auto token = fetch(here, {{"CLOUDSDK_CONFIG", folder.path_of("gcloud")}});
    REQUIRE_MESSAGE(token, (token ? "" : token.error().what()));
    CHECK(token->value.bearer == "ya29.granted");
    CHECK(token->value.identity == "me@example.com");
    CHECK(token->value.project == "payer");
    CHECK(token->value.source ==
          folder.path_of("gcloud") + "/application_default_credentials.json");
    const auto requests = server.requests();
    REQUIRE(requests.size() == 1);
    CHECK(requests[0].method == "POST");
    CHECK(requests[0].target == "/token");
    CHECK(requests[0].field("Content-Type") == "application/x-www-form-urlencoded");
    CHECK(form_of(requests[0].body) ==
          std::map<std::string, std::string>{{"grant_type", "refresh_token"},
                                             {"client_id", "id-1"},
                                             {"client_secret", "hush-hush-1"},
                                             {"refresh_token", "1//refresh+me"}});
  }

  TEST_CASE("the well-known file is found below HOME, after the file that a variable names") {
    scripted_server server(
        [](const seen_request&) -> steps { return {action::send{token_answer}}; });
    const temporary_directory folder;
    folder.write(".config/gcloud/application_default_credentials.json", user_file(server));
    storage_client here;
    const auto token = fetch(here, {{"HOME", folder.path()}});
    REQUIRE(token);
    CHECK(token->value.bearer == "ya29.granted");
    const auto named = fetch(here, {{"HOME", folder.path()},
                                    {"GOOGLE_APPLICATION_CREDENTIALS", folder.path_of("none")}});
    REQUIRE_FALSE(named);
    CHECK(named.error().kind() == errc::invalid_request);
    CHECK(says(named.error(), "GOOGLE_APPLICATION_CREDENTIALS"));
    CHECK(says(named.error(), folder.path_of("none")));
    CHECK(server.requests().size() == 1);
  }

  TEST_CASE("a login that has been revoked says so, where it lies and what to do") {
    scripted_server server([](const seen_request&) -> steps {
      return {action::send{
          answer(400, {}, R"({"error":"invalid_grant","error_description":"Token revoked."})")}};
    });
    const temporary_directory folder;
    folder.write("adc.json", user_file(server));
    storage_client here;
    const auto refused =
        fetch(here, {{"GOOGLE_APPLICATION_CREDENTIALS", folder.path_of("adc.json")}});
    REQUIRE_FALSE(refused);
    CHECK(refused.error().kind() == errc::access_denied);
    for (const char* const part :
         {"invalid_grant", "Token revoked.", "adc.json", "gcloud auth application-default login",
          "GOOGLE_APPLICATION_CREDENTIALS"}) {
      CHECK_MESSAGE(says(refused.error(), part), part);
    }
    CHECK_FALSE(says(refused.error(), "refresh+me"));
    CHECK_FALSE(says(refused.error(), "hush-hush-1"));
    CHECK(server.requests().size() == 1);
  }

  TEST_CASE("a token service that repeats a secret is not quoted") {
    scripted_server server([](const seen_request&) -> steps {
      return {action::send{answer(400, {},
                                  R"({"error":"bad","error_description":")" +
                                      std::string(245, 'x') + R"( 1//refresh+me is unknown"})")}};
    });
    const temporary_directory folder;
    folder.write("adc.json", user_file(server));
    storage_client here;
    const auto refused =
        fetch(here, {{"GOOGLE_APPLICATION_CREDENTIALS", folder.path_of("adc.json")}});
    REQUIRE_FALSE(refused);
    CHECK(refused.error().kind() == errc::access_denied);
    CHECK_FALSE(says(refused.error(), "1//refr"));
  }

  TEST_CASE("a token service that is busy is asked again, one that answers nonsense is not") {
    scripted_server server([](const seen_request& request) -> steps {
      if (request.number == 0) return {action::send{answer(503, {{"Retry-After", "0"}})}};
      if (request.number == 1) return {action::send{token_answer}};
      const std::vector<std::string> nonsense = {
          "<html>",
          "{}",
          R"({"access_token":""})",
          R"({"access_token":"a b"})",
          R"({"access_token":"a\r\nX: y"})",
          R"({"access_token":"a","expires_in":99999999999})"};
      return {action::send{answer(200, {}, nonsense.at(request.number - 2))}};
    });
    const temporary_directory folder;
    folder.write("adc.json", user_file(server));
    storage_client here;
    const std::map<std::string, std::string> variables = {
        {"GOOGLE_APPLICATION_CREDENTIALS", folder.path_of("adc.json")}};
    CHECK(fetch(here, variables));
    for (int i = 0; i < 6; ++i) {
      CAPTURE(i);
      const auto refused = fetch(here, variables);
      REQUIRE_FALSE(refused);
      CHECK(refused.error().kind() == errc::protocol_error);
      CHECK(says(refused.error(), "token service"));
    }
    CHECK(server.requests().size() == 8);
  }

  TEST_CASE("an external account's subject token is read from a file and exchanged") {
    scripted_server server(
        [](const seen_request&) -> steps { return {action::send{token_answer}}; });
    const temporary_directory folder;
    folder.write("subject", "subject-token-1\n");
    folder.write("subject.json", R"({"id_token":"subject-token-2"})");
    folder.write("text.json",
                 external_file(server, R"({"file":")" + folder.path_of("subject") + R"("})"));
    folder.write("json.json", external_file(server,
                                            R"({"file":")" + folder.path_of("subject.json") +
                                                R"(","format":{"type":"json",)"
                                                R"("subject_token_field_name":"id_token"}})",
                                            R"("client_id":"me","client_secret":"pass:word",)"));
    storage_client here;
    const auto first =
        fetch(here, {{"GOOGLE_APPLICATION_CREDENTIALS", folder.path_of("text.json")}});
    REQUIRE_MESSAGE(first, (first ? "" : first.error().what()));
    CHECK(first->value.bearer == "ya29.granted");
    CHECK(first->value.identity == "//iam.googleapis.com/pool/x");
    REQUIRE(fetch(here, {{"GOOGLE_APPLICATION_CREDENTIALS", folder.path_of("json.json")}}));
    const auto requests = server.requests();
    REQUIRE(requests.size() == 2);
    CHECK(form_of(requests[0].body) ==
          std::map<std::string, std::string>{
              {"grant_type", "urn:ietf:params:oauth:grant-type:token-exchange"},
              {"audience", "//iam.googleapis.com/pool/x"},
              {"scope", "https://www.googleapis.com/auth/devstorage.read_only"},
              {"requested_token_type", "urn:ietf:params:oauth:token-type:access_token"},
              {"subject_token", "subject-token-1"},
              {"subject_token_type", "urn:ietf:params:oauth:token-type:jwt"}});
    CHECK_FALSE(requests[0].field("Authorization"));
    CHECK(form_of(requests[1].body)["subject_token"] == "subject-token-2");
    CHECK(requests[1].field("Authorization") == "Basic bWU6cGFzcyUzQXdvcmQ=");
  }

  TEST_CASE("an external account may ask a URL, belong to a workforce, and impersonate") {
    scripted_server server([](const seen_request& request) -> steps {
      if (request.path() == "/subject")
        return {action::send{answer(200, {}, R"({"access_token":"subject-token-3"})")}};
      if (request.path() == "/sts") return {action::send{token_answer}};
      return {action::send{
          answer(200, {}, R"({"accessToken":"ya29.other","expireTime":"2035-01-02T03:04:05Z"})")}};
    });
    const temporary_directory folder;
    folder.write(
        "adc.json",
        external_file(
            server,
            R"({"url":")" + server.url("/subject?x=y") +
                R"(","headers":{"Metadata":"True"},"format":{"type":"json",)"
                R"("subject_token_field_name":"access_token"}})",
            R"("workforce_pool_user_project":"work","service_account_impersonation_url":")" +
                server.url("/v1/projects/-/serviceAccounts/r@p.iam:generateAccessToken") +
                R"(",)"));
    storage_client here;
    const auto token =
        fetch(here, {{"GOOGLE_APPLICATION_CREDENTIALS", folder.path_of("adc.json")}});
    REQUIRE_MESSAGE(token, (token ? "" : token.error().what()));
    CHECK(token->value.bearer == "ya29.other");
    CHECK(token->value.identity == "r@p.iam");
    REQUIRE(token->expires);
    CHECK((*token->expires ==
           std::chrono::sys_days(std::chrono::year(2035) / 1 / 2) + 3h + 4min + 5s));
    const auto requests = server.requests();
    REQUIRE(requests.size() == 3);
    CHECK(requests[0].target == "/subject?x=y");
    CHECK(requests[0].field("Metadata") == "True");
    auto form = form_of(requests[1].body);
    CHECK(form["subject_token"] == "subject-token-3");
    CHECK(form["scope"] == "https://www.googleapis.com/auth/cloud-platform");
    CHECK(form["options"] == R"({"userProject":"work"})");
    CHECK(requests[2].field("Authorization") == "Bearer ya29.granted");
    CHECK(
        requests[2].body ==
        R"({"delegates":[],"scope":["https://www.googleapis.com/auth/devstorage.read_only"],"lifetime":"3600s"})");
  }

  TEST_CASE("a subject token that is not there, and an exchange that is refused, say so") {
    scripted_server server([](const seen_request& request) -> steps {
      if (request.path() == "/subject") return {action::send{answer(404)}};
      return {action::send{answer(
          400, {}, R"({"error":"invalid_target","error_description":"The audience is wrong"})")}};
    });
    const temporary_directory folder;
    folder.write("subject", "subject-token-1");
    folder.write("empty", "\n");
    struct wrong {
      std::string source;
      errc kind;
      const char* says;
    };
    const auto file = [&folder](const char* name) {
      return R"({"file":")" + folder.path_of(name) + R"("})";
    };
    for (const auto& [source, kind, part] : std::vector<wrong>{
             {file("none"), errc::invalid_request, "is not there"},
             {file("empty"), errc::invalid_request, "holds no subject token"},
             {R"({"file":")" + folder.path_of("subject") +
                  R"(","format":{"type":"json","subject_token_field_name":"x"}})",
              errc::invalid_request, "holds no subject token"},
             {R"({"url":")" + server.url("/subject") + R"("})", errc::access_denied,
              "credential_source"},
             {file("subject"), errc::access_denied, "The audience is wrong"},
         }) {
      CAPTURE(source);
      folder.write("adc.json", external_file(server, source));
      storage_client here;
      const auto refused =
          fetch(here, {{"GOOGLE_APPLICATION_CREDENTIALS", folder.path_of("adc.json")}});
      REQUIRE_FALSE(refused);
      CHECK(refused.error().kind() == kind);
      CHECK_MESSAGE(says(refused.error(), part), refused.error().what());
      CHECK(says(refused.error(), "adc.json"));
      CHECK_FALSE(says(refused.error(), "subject-token-1"));
    }
  }

  TEST_CASE("an impersonation that is refused names the role that is missing") {
    scripted_server server([](const seen_request& request) -> steps {
      if (request.path() == "/token") return {action::send{token_answer}};
      return {action::send{
          answer(403, {}, R"({"error":{"status":"PERMISSION_DENIED","message":"not allowed"}})")}};
    });
    const temporary_directory folder;
    folder.write("adc.json", R"({"type":"impersonated_service_account","source_credentials":)" +
                                 user_file(server) + R"(,"service_account_impersonation_url":")" +
                                 server.url("/v1/r@p.iam:generateAccessToken") + R"("})");
    storage_client here;
    const auto refused =
        fetch(here, {{"GOOGLE_APPLICATION_CREDENTIALS", folder.path_of("adc.json")}});
    REQUIRE_FALSE(refused);
    CHECK(refused.error().kind() == errc::access_denied);
    for (const char* const part :
         {"r@p.iam", "PERMISSION_DENIED", "roles/iam.serviceAccountTokenCreator"}) {
      CHECK_MESSAGE(says(refused.error(), part), refused.error().what());
    }
    CHECK_FALSE(says(refused.error(), "ya29.granted"));
  }

  TEST_CASE("the metadata server is asked with its flavor, and has to answer with it") {
    scripted_server server([](const seen_request& request) -> steps {
      const http_fields flavor = {{"Metadata-Flavor", "Google"}};
      const std::string body = R"({"access_token":"ya29.machine","expires_in":3000})";
      return {action::send{answer(200, request.number == 0 ? flavor : http_fields(), body)}};
    });
    storage_client here;
    const std::map<std::string, std::string> variables = {
        {"NO_GCE_CHECK", "false"}, {"GCE_METADATA_HOST", server.origin().host_field()}};
    const auto token = fetch(here, variables);
    REQUIRE_MESSAGE(token, (token ? "" : token.error().what()));
    CHECK(token->value.bearer == "ya29.machine");
    CHECK(token->value.renewable);
    REQUIRE(token->expires);
    const auto requests = server.requests();
    REQUIRE(requests.size() == 1);
    CHECK(requests[0].path() == "/computeMetadata/v1/instance/service-accounts/default/token");
    CHECK(requests[0].field("Metadata-Flavor") == "Google");
    const auto other = fetch(here, variables);
    REQUIRE_FALSE(other);
    CHECK(other.error().kind() == errc::protocol_error);
    CHECK(says(other.error(), "GCE_METADATA_HOST"));
  }

  TEST_CASE("where nobody said that there is a metadata server, its absence means anonymous") {
    scripted_server portal([](const seen_request&) -> steps {
      return {action::send{answer(200, {}, R"({"access_token":"not-googles"})")}};
    });
    scripted_server bare([](const seen_request&) -> steps {
      return {action::send{answer(404, {{"Metadata-Flavor", "Google"}})}};
    });
    scripted_server dead([](const seen_request&) -> steps { return {action::reset{}}; });
    scripted_server other([](const seen_request&) -> steps { return {action::send{answer(401)}}; });
    for (const auto* const server : {&portal, &bare, &dead, &other}) {
      auto settings = settings_of({{"NO_GCE_CHECK", "0"}});
      REQUIRE(settings.asks_metadata);
      settings.metadata = server->origin();
      storage_client here;
      const auto token = fetch_with(here, settings);
      REQUIRE_MESSAGE(token, (token ? "" : token.error().what()));
      CHECK(token->value.bearer.empty());
      CHECK_FALSE(token->expires);
      CHECK(token->value.source.starts_with("none: requests are anonymous"));
      // Somebody who named it wants to know.
      settings.metadata_named = true;
      if (server != &bare) CHECK_FALSE(fetch_with(here, settings));
    }
    auto forbidden = settings_of({});
    forbidden.metadata = portal.origin();
    const auto before = portal.requests().size();
    storage_client here;
    const auto token = fetch_with(here, forbidden);
    REQUIRE(token);
    CHECK(token->value.bearer.empty());
    CHECK(portal.requests().size() == before);
  }

  TEST_CASE("a metadata server that is there and fails is an error, not the lack of one") {
    scripted_server server([](const seen_request& request) -> steps {
      const http_fields flavor = {{"Metadata-Flavor", "Google"}};
      if (request.path() == "/") return {action::send{answer(200, flavor, "computeMetadata/")}};
      return {action::send{answer(403, flavor, "no scopes")}};
    });
    auto settings = settings_of({{"NO_GCE_CHECK", "0"}});
    settings.metadata = server.origin();
    storage_client here;
    const auto refused = fetch_with(here, settings);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().kind() == errc::access_denied);
    CHECK(says(refused.error(), "access scopes"));
    CHECK(server.requests().size() == 2);
  }

  TEST_CASE("a stop while a token is fetched ends the fetch") {
    scripted_server server([](const seen_request&) -> steps { return {action::stall{}}; });
    const temporary_directory folder;
    folder.write("adc.json", user_file(server));
    storage_client here;
    const auto source = make_google_token_source(
        settings_of({{"GOOGLE_APPLICATION_CREDENTIALS", folder.path_of("adc.json")}}), nullptr);
    refreshed<google_token> tokens(source);
    std::stop_source stop;
    const std::jthread stopper([&] {
      CHECK(server.wait_for_requests(1));
      stop.request_stop();
    });
    const auto stopped = here.run(with_stop(stop.get_token(), tokens.get(here.services)));
    REQUIRE_FALSE(stopped);
    CHECK(stopped.error().kind() == errc::cancelled);
  }

  TEST_CASE("files with wrong contents are refused by their names") {
    const temporary_directory folder;
    folder.write("broken.json", "{\"type\":\"service_account\", hunter2");
    storage_client here;
    const auto broken =
        fetch(here, {{"GOOGLE_APPLICATION_CREDENTIALS", folder.path_of("broken.json")}});
    REQUIRE_FALSE(broken);
    CHECK(broken.error().kind() == errc::invalid_request);
    CHECK(says(broken.error(), "GOOGLE_APPLICATION_CREDENTIALS"));
    CHECK(says(broken.error(), "broken.json"));
    CHECK_FALSE(says(broken.error(), "hunter2"));
    folder.write("key.json",
                 R"({"type":"service_account","client_email":"a@b","private_key":"hunter2"})");
    const auto key = fetch(here, {{"GOOGLE_APPLICATION_CREDENTIALS", folder.path_of("key.json")}});
    REQUIRE_FALSE(key);
    CHECK(key.error().kind() == errc::invalid_request);
    CHECK(says(key.error(), "key.json"));
    CHECK_FALSE(says(key.error(), "hunter2"));
    const auto directory = fetch(here, {{"GOOGLE_APPLICATION_CREDENTIALS", folder.path()}});
    REQUIRE_FALSE(directory);
    CHECK(says(directory.error(), "GOOGLE_APPLICATION_CREDENTIALS"));
  }
}

}  // namespace
}  // namespace headrace
