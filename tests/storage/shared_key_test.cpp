#include "storage/shared_key.hpp"

#include <doctest/doctest.h>

#include <chrono>
#include <string>
#include <utility>
#include <vector>

using headrace::decode_account_key;
using headrace::ms_date;
using headrace::shared_key_request;
using headrace::shared_key_signer;
using headrace::string_to_sign;

namespace {

using pairs = std::vector<std::pair<std::string, std::string>>;

// The emulator's, published with it.
const std::string published_key =
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

}  // namespace

TEST_SUITE("unit") {
  TEST_CASE("the example in Azure's documentation gives the text that stands there") {
    const pairs query{{"restype", "container"}, {"comp", "metadata"}, {"timeout", "20"}};
    const pairs fields{{"x-ms-version", "2015-02-21"},
                       {"x-ms-date", "Fri, 26 Jun 2015 23:39:12 GMT"}};
    const shared_key_request request{.path = "/mycontainer", .query = query, .fields = fields};
    CHECK(string_to_sign(request, "myaccount") ==
          "GET\n\n\n\n\n\n\n\n\n\n\n\nx-ms-date:Fri, 26 Jun 2015 23:39:12 GMT\n"
          "x-ms-version:2015-02-21\n/myaccount/mycontainer\ncomp:metadata\nrestype:container\n"
          "timeout:20");
    const shared_key_signer signer("myaccount", decode_account_key(published_key).value());
    CHECK(signer.authorize(request) ==
          "SharedKey myaccount:1u9lui2jDxj0+fpbHjQ5m5NnastJRSYM+PSmfi8TXx4=");
  }

  TEST_CASE("parameters of one name are sorted and joined, as documented") {
    const pairs query{{"restype", "container"},
                      {"comp", "list"},
                      {"include", "snapshots"},
                      {"include", "metadata"},
                      {"include", "uncommittedblobs"}};
    const std::string text =
        string_to_sign({.path = "/mycontainer", .query = query, .fields = {}}, "myaccount");
    CHECK(
        text.ends_with("\n/myaccount/mycontainer\ncomp:list\n"
                       "include:metadata,snapshots,uncommittedblobs\nrestype:container"));
  }

  TEST_CASE("range and pin stand in their places; the emulator's account stands twice") {
    const pairs fields{{"Range", "bytes=0-65535"},
                       {"If-Match", "\"0x8D4BCC2E4835CD0\""},
                       {"X-Other", "not signed"},
                       {"x-ms-version", "2021-02-12"},
                       {"x-ms-date", "Fri, 26 Jun 2015 23:39:12 GMT"}};
    const shared_key_request request{
        .path = "/devstoreaccount1/models/a%20b/x.safetensors", .query = {}, .fields = fields};
    CHECK(string_to_sign(request, "devstoreaccount1") ==
          "GET\n\n\n\n\n\n\n\n\"0x8D4BCC2E4835CD0\"\n\n\nbytes=0-65535\n"
          "x-ms-date:Fri, 26 Jun 2015 23:39:12 GMT\nx-ms-version:2021-02-12\n"
          "/devstoreaccount1/devstoreaccount1/models/a%20b/x.safetensors");
    const shared_key_signer signer("devstoreaccount1", decode_account_key(published_key).value());
    CHECK(signer.authorize(request) ==
          "SharedKey devstoreaccount1:VJY1D/SBwzPRiniPa9lGR+WsnCZTVQrPJ2lyrfyJuPw=");
  }

  TEST_CASE("a user's fields with the prefix are signed: in lower case, sorted, without blanks") {
    const pairs fields{{"X-Ms-Meta-B", "  two  "},
                       {"x-ms-date", "d"},
                       {"x-ms-meta-a", "one"},
                       {"Content-Type", "text/plain"},
                       {"Date", "never with x-ms-date, but signed where it is"}};
    const std::string text = string_to_sign({.path = "/c", .query = {}, .fields = fields}, "a");
    CHECK(text ==
          "GET\n\n\n\n\ntext/plain\nnever with x-ms-date, but signed where it is\n\n\n\n\n\n"
          "x-ms-date:d\nx-ms-meta-a:one\nx-ms-meta-b:two\n/a/c");
  }

  TEST_CASE("a key is base64 and nothing else") {
    CHECK(decode_account_key("a2V5") == "key");
    CHECK(decode_account_key("a2U=") == "ke");
    CHECK(decode_account_key(published_key)->size() == 64);
    for (const char* const wrong :
         {"", "a2V", "a2V5\n", " a2V5", "a2V=", "a=V5", "====", "a2V5a2V!", "a2U=a2V5"}) {
      CAPTURE(wrong);
      CHECK_FALSE(decode_account_key(wrong));
    }
    CHECK_FALSE(decode_account_key(std::string(4096, 'A')));
  }

  TEST_CASE("dates are those of HTTP") {
    using namespace std::chrono;
    const headrace::system_time epoch{};
    CHECK(ms_date(epoch) == "Thu, 01 Jan 1970 00:00:00 GMT");
    CHECK(ms_date(epoch + seconds(784111777) + milliseconds(999)) ==
          "Sun, 06 Nov 1994 08:49:37 GMT");
    CHECK(ms_date(epoch + seconds(1709210096)) == "Thu, 29 Feb 2024 12:34:56 GMT");
  }
}
