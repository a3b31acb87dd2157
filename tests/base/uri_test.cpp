#include <headrace/base/uri.hpp>

#include <doctest/doctest.h>

#include <string>
#include <string_view>
#include <vector>

using headrace::errc;
using headrace::uri;

namespace {

uri parsed(std::string_view text) {
  auto location = uri::parse(text);
  REQUIRE_MESSAGE(location.has_value(), std::string(text));
  return *location;
}

std::string refusal(std::string_view text) {
  auto location = uri::parse(text);
  REQUIRE_MESSAGE(!location.has_value(), std::string(text));
  CHECK(location.error().kind() == errc::invalid_request);
  return location.error().reason();
}

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

}  // namespace

TEST_SUITE("unit") {
  TEST_CASE("a key is taken literally, escapes, spaces and doubled slashes included") {
    const auto location = parsed("s3://bucket/a b%20//c?d#e+f");
    CHECK(location.scheme == "s3");
    CHECK(location.authority == "bucket");
    CHECK(location.path == "a b%20//c?d#e+f");
    CHECK(location.query.empty());
    CHECK(location.display() == "s3://bucket/a b%20//c?d#e+f");
  }

  TEST_CASE("a key may begin and end with slashes") {
    CHECK(parsed("s3://bucket//a//").path == "/a//");
    CHECK(parsed("s3://bucket//a//").display() == "s3://bucket//a//");
  }

  TEST_CASE("a bucket alone has an empty key") {
    CHECK(parsed("s3://bucket").path.empty());
    CHECK(parsed("s3://bucket/").path.empty());
    CHECK(parsed("s3://bucket/").authority == "bucket");
    CHECK(parsed("s3://bucket").display() == "s3://bucket");
    CHECK(parsed("s3://bucket") == parsed("s3://bucket/"));
  }

  TEST_CASE("a missing bucket is refused and the message shows what was expected") {
    for (const auto* text : {"s3://", "s3:///key", "S3:///", "gs:///key", "az://", "hf:///repo",
                             "abfs://", "abfss://@account/x", "s3://user@/key"}) {
      CAPTURE(text);
      CHECK(contains(refusal(text), "missing"));
    }
    CHECK(contains(refusal("s3:///key"), "s3://bucket/prefix"));
    CHECK(contains(refusal("gs://"), "gs://bucket/prefix"));
    CHECK(contains(refusal("az://"), "container"));
  }

  TEST_CASE("schemes are lower-cased, buckets and keys are not") {
    const auto location = parsed("S3://Bucket/Key");
    CHECK(location.scheme == "s3");
    CHECK(location.authority == "Bucket");
    CHECK(location.path == "Key");
    CHECK(parsed("FILE:///Dir").path == "/Dir");
    CHECK(parsed("HTTPS://Example.COM/Dir").display() == "https://example.com/Dir");
  }

  TEST_CASE("the other stores parse as they are written") {
    const auto hub = parsed("hf://org/repo@main/sub");
    CHECK(hub.authority == "org");
    CHECK(hub.path == "repo@main/sub");
    const auto lake = parsed("abfss://container@account.dfs.core.windows.net/prefix");
    CHECK(lake.authority == "container@account.dfs.core.windows.net");
    CHECK(lake.path == "prefix");
    CHECK(lake.user_info.empty());
    CHECK(parsed("gs://bucket/prefix/").path == "prefix/");
  }

  TEST_CASE("an unknown scheme parses, and what may be a secret in it is not shown") {
    const auto location = parsed("ftp://user:word@host/dir/file?sig=abc");
    CHECK(location.scheme == "ftp");
    CHECK(location.user_info == "user:word");
    CHECK(location.query == "sig=abc");
    CHECK(location.display() == "ftp://host/dir/file");
    CHECK(parsed("x+y-z.1:///p").scheme == "x+y-z.1");
  }

  TEST_CASE(
      "keys in front of a bucket are kept apart, and refused without being repeated where they hide in the text") {
    const auto location = parsed("s3://AKID@bucket/key");
    CHECK(location.user_info == "AKID");
    CHECK(location.authority == "bucket");
    CHECK(location.display() == "s3://bucket/key");
    const auto message = refusal("s3://AKID:SEC/RET@bucket/key");
    CHECK(!contains(message, "AKID"));
    CHECK(!contains(message, "RET"));
  }

  TEST_CASE("an access point's ARN parses: the storage room judges it") {
    CHECK(parsed("s3://arn:aws:s3:eu-west-1:123456789012:accesspoint/name/key").authority ==
          "arn:aws:s3:eu-west-1:123456789012:accesspoint");
  }

  TEST_CASE("a text without a scheme is a local path, taken literally") {
    for (const auto* text : {"/data/model", "model", "./a b%20", "../x", "C:\\model", "a:b",
                             "file:/dir", "dir/s3://x", "/a?b#c", " leading", "~"}) {
      CAPTURE(text);
      const auto location = parsed(text);
      CHECK(location.scheme == "file");
      CHECK(location.authority.empty());
      CHECK(location.path == text);
      CHECK(location.display() == text);
    }
  }

  TEST_CASE("a file URL is percent-decoded") {
    CHECK(parsed("file:///dir/a%20b").path == "/dir/a b");
    CHECK(parsed("file:///dir/a b").path == "/dir/a b");
    CHECK(parsed("file:///%E6%B0%B4").path == "/\xE6\xB0\xB4");
    CHECK(parsed("file:///a%3Fb%23c%25").path == "/a?b#c%");
    CHECK(parsed("file:///a+b").path == "/a+b");
    CHECK(parsed("file:///").path == "/");
    CHECK(parsed("file://localhost/dir").path == "/dir");
    CHECK(parsed("file://LocalHost/dir").authority.empty());
    CHECK(parsed("file:///dir/a%20b").display() == "/dir/a b");
  }

  TEST_CASE(
      "a file URL of another machine, without a path, or with escapes that are none is refused") {
    for (const auto* text :
         {"file://other/dir", "file://dir", "file://", "file://localhost",
          "file://user@localhost/x", "file://localhost:80/x", "file:///a%", "file:///a%2",
          "file:///a%zz", "file:///a?b", "file:///a#b", "file:///a%00b", "file:///a%0Ab"}) {
      CAPTURE(text);
      (void)refusal(text);
    }
  }

  TEST_CASE("a URL keeps its escapes, its port and its query") {
    const auto location = parsed("https://example.com:8443/dir/a%20b?X-Amz-Signature=secret");
    CHECK(location.scheme == "https");
    CHECK(location.authority == "example.com:8443");
    CHECK(location.path == "/dir/a%20b");
    CHECK(location.query == "X-Amz-Signature=secret");
    CHECK(location.display() == "https://example.com:8443/dir/a%20b");
  }

  TEST_CASE("a URL without a path names the root") {
    CHECK(parsed("http://host").path == "/");
    CHECK(parsed("http://host").display() == "http://host/");
    CHECK(parsed("http://host?x").query == "x");
    CHECK(parsed("http://host:/a").authority == "host");
  }

  TEST_CASE("a URL's path is not normalised") {
    CHECK(parsed("http://host/a/../b//c/.").path == "/a/../b//c/.");
    CHECK(parsed("http://host//a").path == "//a");
    CHECK(parsed("http://host//a").display() == "http://host//a");
  }

  TEST_CASE("addresses of IPv6 keep their brackets") {
    CHECK(parsed("http://[::1]:9000/x").authority == "[::1]:9000");
    CHECK(parsed("http://[2001:DB8::1]/x").authority == "[2001:db8::1]");
    (void)refusal("http://[::1/x");
    (void)refusal("http://::1/x");
    (void)refusal("http://[::g]/x");
  }

  TEST_CASE("user information is kept apart and in no message") {
    const auto location = parsed("https://user:p%40ss@host/x");
    CHECK(location.user_info == "user:p%40ss");
    CHECK(location.authority == "host");
    CHECK(location.display() == "https://host/x");
    const auto message = refusal("https://user:secret@ho st/x?signature");
    CHECK(!contains(message, "secret"));
    CHECK(!contains(message, "signature"));
  }

  TEST_CASE("a URL that is none is refused") {
    for (const auto* text :
         {"http://", "http:///x", "http://host/a b", "http://host/%zz", "http://host:99999/",
          "http://host:0/", "http://host:x/", "http://host:8x/", "http://host:8:9/",
          "http://a@b@c/", "http://[::1]x/", "http://host:-1/", "http://1.2.3.4:z",
          "http://ho%73t/", "http://host/#top", "http://host/a\\b", "https://host/\xC3\xA9",
          "http://:80/", "http://user@/x"}) {
      CAPTURE(text);
      (void)refusal(text);
    }
    CHECK(contains(refusal("http://host/a#b"), "fragment"));
    CHECK(contains(refusal("http://host/a b"), "percent-encoded"));
  }

  TEST_CASE("what begins with neither a scheme nor a path is refused") {
    for (const auto* text : {"://x", "3s://bucket", "s_3://bucket", "a b://c"}) {
      CAPTURE(text);
      CHECK(contains(refusal(text), "scheme"));
    }
  }

  TEST_CASE("an empty text, control characters and a text without end are refused") {
    CHECK(contains(refusal(""), "empty"));
    for (const auto text : {std::string_view("a\0b", 3), std::string_view("s3://b/a\nb"),
                            std::string_view("http://h/\r\nX: y"), std::string_view("s3://b\x7f/x"),
                            std::string_view("\t/dir"), std::string_view("\0", 1)}) {
      CHECK(contains(refusal(text), "control"));
    }
    (void)refusal(std::string(70'000, 'a'));
  }

  TEST_CASE("what is displayed parses to the same place") {
    for (const auto* text : {"s3://bucket/a//b c", "s3://bucket", "/dir/x", "rel", "http://host/x",
                             "https://[::1]:1/", "hf://o/r"}) {
      CAPTURE(text);
      CHECK(parsed(parsed(text).display()) == parsed(text));
    }
  }
}
