#include "storage_client.hpp"

#include <doctest/doctest.h>
#include <support/certificates.hpp>
#include <support/checkpoint.hpp>
#include <support/scripted_server.hpp>

#include <string>
#include <utility>

namespace headrace {
namespace {

using test::answer_with;
using test::scripted_server;
using test::seen_request;
using test::steps;
using test::storage_client;
namespace action = test::action;

const std::string object = test::content_of("object", 300'000);

const test::authority& trusted() {
  static const test::authority made;
  return made;
}

/// Where `ca.pem` is what clients trust.
const test::temporary_directory& directory() {
  static const test::temporary_directory made;
  return made;
}

storage_options trusting() {
  directory().write("ca.pem", trusted().certificate());
  storage_options options;
  options.ca_file = directory().path_of("ca.pem");
  return options;
}

scripted_server::options tls(const test::identity& self) {
  scripted_server::options options;
  options.tls.emplace();
  options.tls->self = self;
  return options;
}

steps answers(const seen_request& request) { return {action::send{answer_with(object, request)}}; }

TEST_SUITE("fault") {
  TEST_CASE(
      "a certificate that is expired, another host's or a stranger's is a tls_error at once") {
    const test::authority stranger("a stranger");
    const std::pair<test::identity, const char*> cases[] = {
        {trusted().issue({.names = {"IP:127.0.0.1"}, .valid_from = -9, .valid_until = -5}),
         "expired on"},
        {trusted().issue({.names = {"IP:127.0.0.2", "DNS:elsewhere.example"}}),
         "'127.0.0.2', 'elsewhere.example'"},
        {stranger.issue({.names = {"IP:127.0.0.1"}}), "--ca-file"},
    };
    for (const auto& [self, why] : cases) {
      scripted_server server(&answers, tls(self));
      storage_client here;
      const auto source =
          storage_client::source(server.url("/m/x.safetensors"), "x.safetensors", trusting());
      const auto opened = here.open(*source);
      REQUIRE_FALSE(opened);
      CHECK(opened.error().kind() == errc::tls_error);
      CHECK_MESSAGE(opened.error().message().find(why) != std::string::npos,
                    opened.error().message());
      CHECK(opened.error().message().find(server.url("/m/x.safetensors")) != std::string::npos);
      CHECK(here.retries() == 0);
      CHECK(server.connections() == 1);
      CHECK(server.requests().empty());
    }
  }

  TEST_CASE("a redirect from https to http is refused, and nobody is asked") {
    scripted_server plain(&answers);
    scripted_server server(
        [&plain](const seen_request&) -> steps {
          return {action::send{test::answer(302, {{"Location", plain.url("/x?sig=hunter2")}})}};
        },
        tls(trusted().issue({.names = {"IP:127.0.0.1"}})));
    storage_client here;
    const auto source =
        storage_client::source(server.url("/m/x.safetensors"), "x.safetensors", trusting());
    const auto opened = here.open(*source);
    REQUIRE_FALSE(opened);
    CHECK(opened.error().kind() == errc::protocol_error);
    CHECK(test::says(opened.error(), "from https to http"));
    CHECK_FALSE(test::says(opened.error(), "hunter2"));
    CHECK(server.requests().size() == 1);
    CHECK(plain.connections() == 0);
  }

  TEST_CASE("a TLS stream that ends without close_notify is resumed at the first missing byte") {
    for (const bool orderly : {true, false}) {
      scripted_server server(
          [orderly](const seen_request& request) -> steps {
            const auto whole = answer_with(object, request);
            if (request.number != 1) return {action::send{whole}};
            const auto part = whole.substr(0, whole.find("\r\n\r\n") + 4 + 70'000);
            return {action::send{part}, orderly ? test::step(action::close{}) : action::cut{}};
          },
          tls(trusted().issue({.names = {"IP:127.0.0.1"}})));
      storage_client here;
      const auto source =
          storage_client::source(server.url("/m/x.safetensors"), "x.safetensors", trusting());
      REQUIRE(here.open(*source));
      const auto bytes = here.read(*source, 100'000, 150'000);
      REQUIRE_MESSAGE(bytes, (bytes ? "" : bytes.error().what()));
      CHECK((*bytes == object.substr(100'000, 150'000)));
      const auto requests = server.requests();
      REQUIRE(requests.size() == 3);
      CHECK(requests[2].range() == byte_range{170'000, 80'000});
      CHECK(requests[2].field("If-Match") == "\"v1\"");
      CHECK(requests[2].resumed);
      CHECK(here.retries() == 1);
    }
  }
}

}  // namespace
}  // namespace headrace
