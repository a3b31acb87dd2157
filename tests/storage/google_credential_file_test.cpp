#include "storage/google_credential_file.hpp"

#include <doctest/doctest.h>

#include <string>
#include <vector>

namespace headrace {
namespace {

result<google_credential_file> parse(const std::string& text) {
  return parse_google_credential_file(text, "FILE");
}

const std::string impersonation_url =
    "https://iamcredentials.googleapis.com/v1/projects/-/serviceAccounts/"
    "reader@p.iam.gserviceaccount.com:generateAccessToken";

TEST_SUITE("unit") {
  TEST_CASE("a service account's key is read") {
    const auto read = parse(
        R"({"type":"service_account","client_email":"a@p.iam","private_key_id":"k1",)"
        R"("private_key":"-----BEGIN…","project_id":"p","universe_domain":"googleapis.com"})");
    REQUIRE_MESSAGE(read, (read ? "" : read.error().what()));
    const auto& account = std::get<google_service_account>(read->holder);
    CHECK(account.email == "a@p.iam");
    CHECK(account.key_id == "k1");
    CHECK(account.private_key == "-----BEGIN…");
    CHECK(read->project == "p");
    CHECK_FALSE(read->impersonation);
  }

  TEST_CASE("a person's login is read, with Google's token service where the file names none") {
    const auto read = parse(
        R"({"type":"authorized_user","client_id":"i","client_secret":"s","refresh_token":"r",)"
        R"("quota_project_id":"q","project_id":"p","account":"me@example.com"})");
    REQUIRE(read);
    const auto& user = std::get<google_user>(read->holder);
    CHECK(user.refresh_token == "r");
    CHECK(user.token_service.origin.host == "oauth2.googleapis.com");
    CHECK(user.token_service.target() == "/token");
    CHECK(user.account == "me@example.com");
    CHECK(read->project == "q");
  }

  TEST_CASE("an external account is read with a file, with a URL, and with impersonation") {
    const std::string head =
        R"({"type":"external_account","audience":"//iam/pool","subject_token_type":"jwt",)"
        R"("token_url":"https://sts.googleapis.com/v1/token",)";
    const auto file = parse(head + R"("credential_source":{"file":"/var/token"}})");
    REQUIRE_MESSAGE(file, (file ? "" : file.error().what()));
    const auto& first = std::get<google_external_account>(file->holder);
    CHECK(first.subject_file == "/var/token");
    CHECK(first.subject_member.empty());
    CHECK_FALSE(first.subject_place);
    const auto url = parse(
        head + R"("service_account_impersonation_url":")" + impersonation_url +
        R"(","service_account_impersonation":{"token_lifetime_seconds":1200},)"
        R"("credential_source":{"url":"http://169.254.169.254/t?a=b","headers":{"Metadata":"True"},)"
        R"("format":{"type":"json","subject_token_field_name":"access_token"}}})");
    REQUIRE_MESSAGE(url, (url ? "" : url.error().what()));
    const auto& second = std::get<google_external_account>(url->holder);
    REQUIRE(second.subject_place);
    CHECK(second.subject_place->target() == "/t?a=b");
    CHECK(second.subject_fields == http_fields{{"Metadata", "True"}});
    CHECK(second.subject_member == "access_token");
    REQUIRE(url->impersonation);
    CHECK(url->impersonation->email == "reader@p.iam.gserviceaccount.com");
    CHECK(url->impersonation->lifetime == std::chrono::seconds(1200));
  }

  TEST_CASE("an impersonated service account is read with its source") {
    const auto read =
        parse(R"({"type":"impersonated_service_account","service_account_impersonation_url":")" +
              impersonation_url +
              R"(","delegates":["d1"],"source_credentials":{"type":"authorized_user",)"
              R"("client_id":"i","client_secret":"s","refresh_token":"r"}})");
    REQUIRE_MESSAGE(read, (read ? "" : read.error().what()));
    CHECK(std::holds_alternative<google_user>(read->holder));
    REQUIRE(read->impersonation);
    CHECK(read->impersonation->delegates == std::vector<std::string>{"d1"});
    CHECK(read->impersonation->lifetime == std::chrono::seconds(3600));
  }

  TEST_CASE("what cannot be used says what is wrong, and repeats no secret") {
    struct wrong {
      std::string text;
      errc kind;
      const char* says;
    };
    const std::string external =
        R"({"type":"external_account","audience":"a","subject_token_type":"t",)"
        R"("token_url":"https://sts.googleapis.com/","credential_source":)";
    const std::vector<wrong> cases = {
        {"", errc::invalid_request, "no JSON object"},
        {"[]", errc::invalid_request, "no JSON object"},
        {"hunter2", errc::invalid_request, "no JSON object"},
        {R"({"installed":{"client_secret":"hunter2"}})", errc::invalid_request, "has no 'type'"},
        {R"({"type":"gdch_service_account"})", errc::unsupported, "gdch_service_account"},
        {R"({"type":"service_account","private_key":"hunter2"})", errc::invalid_request,
         "'client_email'"},
        {R"({"type":"service_account","client_email":"a"})", errc::invalid_request,
         "'private_key'"},
        {R"({"type":"service_account","client_email":"a","private_key":5})", errc::invalid_request,
         "'private_key'"},
        {R"({"type":"service_account","client_email":"a\nb","private_key":"hunter2"})",
         errc::invalid_request, "control character"},
        {R"({"type":"service_account","client_email":"a","private_key":"hunter2","universe_domain":"x"})",
         errc::unsupported, "universe"},
        {R"({"type":"authorized_user","client_id":"i","client_secret":"hunter2"})",
         errc::invalid_request, "'refresh_token'"},
        {R"({"type":"authorized_user","client_id":"i","client_secret":"hunter2","refresh_token":"r","token_uri":"http://example.com/"})",
         errc::invalid_request, "without https"},
        {R"({"type":"authorized_user","client_id":"i","client_secret":"s","refresh_token":"r","token_uri":"https://u:hunter2@x"})",
         errc::invalid_request, "token_uri"},
        {R"({"type":"external_account","audience":"a","subject_token_type":"t"})",
         errc::invalid_request, "'token_url'"},
        {external + "{}}", errc::invalid_request, "neither 'file' nor 'url'"},
        {external + "5}", errc::invalid_request, "'credential_source'"},
        {external + R"({"environment_id":"aws1","url":"http://x"}})", errc::unsupported,
         "environment_id"},
        {external + R"({"executable":{"command":"hunter2"}}})", errc::unsupported, "executable"},
        {external + R"({"url":"ftp://x"}})", errc::invalid_request, "'url'"},
        {external + R"({"url":"http://x","headers":{"a b":"hunter2"}}})", errc::invalid_request,
         "'headers'"},
        {external + R"({"url":"http://x","headers":{"a":"hunter2\r\nb: c"}}})",
         errc::invalid_request, "'headers'"},
        {external + R"({"file":"f","format":{"type":"json"}}})", errc::invalid_request,
         "subject_token_field_name"},
        {external + R"({"file":"f","format":{"type":"xml"}}})", errc::invalid_request, "'format'"},
        {external + R"({"file":"f"},"service_account_impersonation_url":"http://example.com/x"})",
         errc::invalid_request, "without https"},
        {R"({"type":"impersonated_service_account"})", errc::invalid_request,
         "'source_credentials'"},
        {R"({"type":"impersonated_service_account","service_account_impersonation_url":"https://x/y","source_credentials":{"type":"impersonated_service_account"}})",
         errc::unsupported, "'source_credentials'"},
        {R"({"type":"impersonated_service_account","service_account_impersonation_url":"https://x/y","delegates":"d","source_credentials":{"type":"authorized_user","client_id":"i","client_secret":"s","refresh_token":"r"}})",
         errc::invalid_request, "'delegates'"},
    };
    for (const auto& [text, kind, says] : cases) {
      CAPTURE(text);
      const auto refused = parse(text);
      REQUIRE_FALSE(refused);
      CHECK(refused.error().kind() == kind);
      const std::string said = refused.error().what();
      CHECK_MESSAGE(said.find(says) != std::string::npos, said);
      CHECK(said.find("FILE") != std::string::npos);
      CHECK(said.find("hunter2") == std::string::npos);
    }
  }
}

}  // namespace
}  // namespace headrace
