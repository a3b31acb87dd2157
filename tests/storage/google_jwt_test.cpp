#include "storage/google_jwt.hpp"

#include "rsa_key.hpp"

#include <doctest/doctest.h>

#include <string>

namespace headrace {
namespace {

using test::from_base64url;
using test::parts_of;
using test::rsa_key;

const system_time now{std::chrono::seconds(1'700'000'000)};

TEST_SUITE("unit") {
  TEST_CASE("a service account's token holds the claims that Google wants, under its signature") {
    const rsa_key key;
    const auto token = sign_google_jwt("a@p.iam", "k1", key.pem(), "scope/x", now);
    REQUIRE_MESSAGE(token, (token ? "" : token.error().what()));
    const auto parts = parts_of(*token);
    REQUIRE(parts.size() == 3);
    CHECK(from_base64url(parts[0]) == R"({"alg":"RS256","typ":"JWT","kid":"k1"})");
    CHECK(
        from_base64url(parts[1]) ==
        R"({"iss":"a@p.iam","sub":"a@p.iam","scope":"scope/x","iat":1700000000,"exp":1700003600})");
    CHECK(key.verifies(parts[0] + "." + parts[1], from_base64url(parts[2])));
    CHECK_FALSE(key.verifies(parts[0] + "." + parts[0], from_base64url(parts[2])));
    CHECK(token->find_first_of("+/=") == std::string::npos);
  }

  TEST_CASE("a key that cannot be used is refused, without asking a terminal for its passphrase") {
    const rsa_key good;
    std::string cut = good.pem();
    cut.resize(cut.size() / 2);
    for (const std::string& key :
         {std::string(), std::string("hunter2"), cut, good.encrypted_pem(), rsa_key(512).pem()}) {
      const auto refused = sign_google_jwt("a", "", key, "s", now);
      REQUIRE_FALSE(refused);
      CHECK(refused.error().kind() == errc::invalid_request);
      CHECK(std::string(refused.error().what()).find("private_key") != std::string::npos);
      CHECK(std::string(refused.error().what()).find("hunter2") == std::string::npos);
    }
  }

  TEST_CASE("base64 for URLs has its own alphabet and no padding") {
    CHECK(base64url("").empty());
    CHECK(base64url("f") == "Zg");
    CHECK(base64url("fo") == "Zm8");
    CHECK(base64url("foo") == "Zm9v");
    CHECK(base64url("\xfb\xff\xbf") == "-_-_");
  }
}

}  // namespace
}  // namespace headrace
