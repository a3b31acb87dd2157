#include "storage/sas_token.hpp"

#include <doctest/doctest.h>

#include <chrono>
#include <string>

using headrace::parse_sas_token;
using headrace::system_time;

TEST_SUITE("unit") {
  TEST_CASE("a token is sent as it was handed out, without its question mark") {
    const std::string text =
        "?sv=2021-12-02&ss=b&srt=co&sp=rl&st=2024-02-29T12%3A00%3A00Z&se=2024-03-01T00%3A00%3A00Z"
        "&spr=https&sig=a%2Bb%2Fc%3D";
    const auto token = parse_sas_token(text);
    REQUIRE(token);
    CHECK(token->query == text.substr(1));
    CHECK(token->permissions == "rl");
    using namespace std::chrono;
    CHECK(token->starts == system_time(sys_days(2024y / 2 / 29) + 12h));
    CHECK(token->expires == system_time(sys_days(2024y / 3 / 1)));
  }

  TEST_CASE("what a tool has decoded is encoded again") {
    const auto token = parse_sas_token("sv=2021-12-02&se=2024-03-01T10:30Z&sig=a+b/c=");
    REQUIRE(token);
    CHECK(token->query == "sv=2021-12-02&se=2024-03-01T10%3A30Z&sig=a%2Bb%2Fc%3D");
  }

  TEST_CASE("all forms of times that Azure takes are read, others mean that nobody knows") {
    using namespace std::chrono;
    const auto expiry = [](const std::string& text) {
      const auto token = parse_sas_token("se=" + text + "&sig=x");
      REQUIRE(token);
      return token->expires;
    };
    const system_time day = sys_days(2024y / 2 / 29);
    CHECK(expiry("2024-02-29") == day);
    CHECK(expiry("2024-02-29T10:30Z") == day + 10h + 30min);
    CHECK(expiry("2024-02-29T10:30:05Z") == day + 10h + 30min + 5s);
    CHECK(expiry("2024-02-29T10:30:05.1234567Z") == day + 10h + 30min + 5s);
    for (const char* const odd :
         {"", "9999-12-31", "0000-00-00", "2023-02-29", "2024-13-01", "2024-02-29T10",
          "2024-02-29T25:00Z", "2024-02-29T10:30", "2024-02-29T10:30:xxZ", "tomorrow"}) {
      CAPTURE(odd);
      CHECK_FALSE(expiry(odd));
    }
  }

  TEST_CASE("what is no token is none") {
    for (const char* const wrong : {"", "?", "sv=2021-12-02", "sig=", "sig", "sv=1&sig=a b",
                                    "sv=1&sig=a\nb", "=x&sig=y", "sv=%zz&sig=y"}) {
      CAPTURE(wrong);
      CHECK_FALSE(parse_sas_token(wrong));
    }
    CHECK_FALSE(parse_sas_token("sig=" + std::string(5000, 'a')));
  }
}
