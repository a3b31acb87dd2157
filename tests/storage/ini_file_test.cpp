#include "storage/ini_file.hpp"

#include <doctest/doctest.h>

#include <string>

namespace headrace {
namespace {

std::string refusal(const std::string& text) {
  const auto read = parse_ini(text, "/home/me/.aws/config");
  REQUIRE_FALSE(read.has_value());
  CHECK(read.error().kind() == errc::invalid_request);
  return read.error().reason();
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_SUITE("unit") {
  TEST_CASE("sections, values, comments and blanks are read as Python reads them") {
    const auto read = parse_ini(
        "\xef\xbb\xbf# first\r\n[default]\r\nRegion = eu-west-1 ; kept\r\n\r\n; x\naws_secret = a=b:c\n"
        "[profile  p q]  # what follows is nothing\nkey: value\nempty =\n",
        "f");
    REQUIRE(read.has_value());
    REQUIRE(read->size() == 2);
    using pairs = decltype(ini_section::values);
    CHECK((*read)[0].name == "default");
    CHECK((*read)[0].values == pairs{{"region", "eu-west-1 ; kept"}, {"aws_secret", "a=b:c"}});
    CHECK((*read)[1].name == "profile  p q");
    CHECK((*read)[1].values == pairs{{"key", "value"}, {"empty", ""}});
  }

  TEST_CASE("indented lines continue a value") {
    const auto read =
        parse_ini("[a]\ns3 =\n  x = 1\n  # no line of it\n\n  y = 2\nz = one\n    two\n[b]\n", "f");
    REQUIRE(read.has_value());
    using pairs = decltype(ini_section::values);
    CHECK((*read)[0].values == pairs{{"s3", "\nx = 1\ny = 2"}, {"z", "one\ntwo"}});
    CHECK((*read)[1].values.empty());
  }

  TEST_CASE("what cannot be read is an error that names the file and the line, never the text") {
    CHECK(contains(refusal("secret = hunter2\n"), "/home/me/.aws/config, line 1"));
    CHECK(contains(refusal("[a]\n\nhunter2\n"), "line 3"));
    CHECK(contains(refusal("[a]\n= hunter2\n"), "line 2"));
    CHECK(contains(refusal("[a]\nx = 1\n[a]\n"), "line 3"));
    CHECK(contains(refusal("[a]\nx = 1\nX = hunter2\n"), "line 3"));
    CHECK(contains(refusal(std::string("[a]\nx = hunter2\0\n", 17)), "line 2"));
    for (const auto* const text : {"secret = hunter2\n", "[a]\nhunter2\n", "[a]\nx=1\nx=hunter2"})
      CHECK_FALSE(contains(refusal(text), "hunter2"));
  }
}

}  // namespace
}  // namespace headrace
