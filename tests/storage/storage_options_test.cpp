#include <headrace/storage/storage_options.hpp>

#include <doctest/doctest.h>

#include <string>

using headrace::check;
using headrace::errc;
using headrace::storage_options;

namespace {

std::string refusal(const storage_options& options) {
  auto checked = check(options);
  REQUIRE_FALSE(checked.has_value());
  CHECK(checked.error().kind() == errc::invalid_request);
  return checked.error().reason();
}

storage_options with_header(std::string name, std::string value) {
  storage_options options;
  options.headers.emplace_back(std::move(name), std::move(value));
  return options;
}

}  // namespace

TEST_SUITE("unit") {
  TEST_CASE("the defaults, and options as users set them, pass") {
    CHECK(check({}).has_value());
    auto options = with_header("Authorization", "Bearer abc");
    options.headers.emplace_back("X-Team", "");
    options.endpoint = "http://127.0.0.1:9000";
    options.region = "eu-west-1";
    options.credentials = {"AKID", "secret/+=", "token"};
    CHECK(check(options).has_value());
  }

  TEST_CASE("keys must be whole and clean, and no message repeats them") {
    storage_options options;
    options.credentials = {"", "SECRET", ""};
    CHECK(refusal(options).find("access_key_id") != std::string::npos);
    options.credentials = {"AKID", "", ""};
    CHECK(refusal(options).find("secret_access_key") != std::string::npos);
    options.credentials = {"AKID", "SECRET\n", ""};
    auto message = refusal(options);
    CHECK(message.find("secret_access_key") != std::string::npos);
    CHECK(message.find("SECRET") == std::string::npos);
    options.credentials = {"AKID", "secret", "TOK EN"};
    CHECK(refusal(options).find("session_token") != std::string::npos);
    options.credentials = {"AKID", "secret", ""};
    options.anonymous = true;
    CHECK(refusal(options).find("exclude") != std::string::npos);
  }

  TEST_CASE(
      "header names and values that would break a request are refused, and values are not repeated") {
    for (const auto* name : {"", "a b", "a:b", "a\r\nb", "\xC3\xA9"}) {
      CAPTURE(std::string(name));
      (void)refusal(with_header(name, "x"));
    }
    (void)refusal(with_header(std::string("a\0b", 3), "x"));
    for (const auto* value :
         {"SECRET\r\nX: y", "SECRET\n", "SECRET\r", "SECRET\x7f", "SECRET\x01"}) {
      CHECK(refusal(with_header("X-A", value)).find("SECRET") == std::string::npos);
    }
    (void)refusal(with_header("X-A", std::string("a\0b", 3)));
    (void)refusal(with_header("X-A", std::string(20'000, 'a')));
    CHECK(check(with_header("X-A", "a\tb \xC3\xA9")).has_value());
    storage_options many;
    for (int i = 0; i < 51; ++i) many.headers.emplace_back("X-" + std::to_string(i), "x");
    (void)refusal(many);
  }

  TEST_CASE("headers that headrace sets itself are refused in any case") {
    for (const auto* name : {"Host", "RANGE", "if-match", "Content-Length", "Transfer-Encoding",
                             "Accept-Encoding", "X-Amz-Date", "Connection"}) {
      CAPTURE(std::string(name));
      (void)refusal(with_header(name, "x"));
    }
  }

  TEST_CASE("control characters and regions that are none are refused") {
    storage_options options;
    options.region = "eu west";
    (void)refusal(options);
    options.region = "eu-west-1/x";
    (void)refusal(options);
    options.region.clear();
    options.endpoint = "http://h\r\n";
    (void)refusal(options);
    options.endpoint.clear();
    options.ca_file = std::string("a\0b", 3);
    (void)refusal(options);
  }
}
