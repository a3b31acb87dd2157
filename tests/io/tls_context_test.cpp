#include <headrace/io/tls_context.hpp>

#include <doctest/doctest.h>
#include <support/certificates.hpp>
#include <support/checkpoint.hpp>

#include <cstdlib>
#include <string>

using namespace headrace;

namespace {

/// The reason why `options` are refused.
std::string refusal(const tls_options& options) {
  const auto made = tls_context::make(options);
  REQUIRE_FALSE(made);
  CHECK(made.error().kind() == errc::invalid_request);
  return made.error().reason();
}

bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_SUITE("unit") {
  TEST_CASE("the system's authorities are trusted where nothing is named") {
    CHECK(tls_context::make({}));
  }

  TEST_CASE("a file of authorities that cannot be used is named, with what is wrong") {
    const test::temporary_directory directory;
    directory.write("empty.pem", "");
    directory.write("text.pem", "these are no certificates");
    const auto broken =
        std::string("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
    directory.write("broken.pem", broken);
    for (const char* const name : {"absent.pem", "empty.pem", "text.pem", "broken.pem", "."}) {
      const auto path = directory.path_of(name);
      const auto reason = refusal({.ca_file = path});
      CHECK(has(reason, "'" + path + "'"));
      CHECK(has(reason, "SSL_CERT_FILE"));
      CHECK_FALSE(has(reason, "AAAA"));
    }
    CHECK(has(refusal({.ca_file = directory.path_of("absent.pem")}), "No such file"));
    CHECK(has(refusal({.ca_file = directory.path()}), "is a directory"));
  }

  TEST_CASE("directories of authorities come by colons; one that is there will do") {
    const test::temporary_directory directory;
    const auto absent = directory.path_of("absent");
    CHECK(has(refusal({.ca_directory = absent}), "SSL_CERT_DIR"));
    CHECK(tls_context::make({.ca_directory = absent + ":" + directory.path()}));
    directory.write("ca.pem", test::authority().certificate());
    CHECK(tls_context::make({.ca_file = directory.path_of("ca.pem"), .ca_directory = absent}));
  }

  TEST_CASE("a certificate of our own needs its key, and the other way round") {
    const test::temporary_directory directory;
    const test::authority ca;
    const auto self = ca.issue({.names = {}});
    directory.write("self.pem", self.certificate);
    directory.write("self.key", self.key);
    directory.write("other.key", ca.issue({.names = {}}).key);
    directory.write("locked.key", test::encrypted(self.key, "hunter2"));
    directory.write("text.key", "no key");
    const auto certificate = directory.path_of("self.pem");
    const auto key = directory.path_of("self.key");

    CHECK(tls_context::make({.certificate_file = certificate, .key_file = key}));
    CHECK(has(refusal({.certificate_file = certificate}), "key_file is not set"));
    CHECK(has(refusal({.key_file = key}), "certificate_file is not set"));
    CHECK(has(refusal({.certificate_file = directory.path_of("absent"), .key_file = key}),
              "No such file"));
    CHECK(has(refusal({.certificate_file = key, .key_file = key}), "(certificate_file)"));
    const auto with_key = [&](const char* name) {
      return refusal({.certificate_file = certificate, .key_file = directory.path_of(name)});
    };
    CHECK(has(with_key("other.key"), "does not belong"));
    CHECK(has(with_key("locked.key"), "passphrase"));
    CHECK(has(with_key("absent.key"), "No such file"));
    CHECK(has(with_key("text.key"), "(key_file)"));
  }
}
