#include "storage/s3_answers.hpp"

#include <doctest/doctest.h>

#include <string>
#include <string_view>

using headrace::errc;
using headrace::parse_s3_error;
using headrace::parse_s3_listing;
using headrace::s3_listing;

namespace {

s3_listing listing_of(const std::string& body) {
  auto listing = parse_s3_listing(body);
  REQUIRE_MESSAGE(listing.has_value(), body.substr(0, 400));
  return *listing;
}

void is_refused(const std::string& body) {
  auto listing = parse_s3_listing(body);
  REQUIRE_MESSAGE(!listing.has_value(), body.substr(0, 400));
  CHECK(listing.error().kind() == errc::protocol_error);
}

std::string page(std::string_view inside) {
  return "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">" +
         std::string(inside) + "</ListBucketResult>";
}

std::string object(std::string_view key, std::string_view size = "1") {
  return "<Contents><Key>" + std::string(key) + "</Key><Size>" + std::string(size) +
         "</Size></Contents>";
}

std::string key_of(const std::string& encoded, std::string_view before = "") {
  const auto listing = listing_of(page(std::string(before) + object(encoded)));
  REQUIRE(listing.objects.size() == 1);
  return listing.objects[0].key;
}

}  // namespace

TEST_SUITE("unit") {
  TEST_CASE("a listing gives keys, sizes, etags, prefixes and the way to the next page") {
    const auto listing = listing_of(page(R"(
      <Name>bucket</Name><Prefix>models/</Prefix><KeyCount>3</KeyCount><MaxKeys>1000</MaxKeys><Delimiter>/</Delimiter>
      <IsTruncated>true</IsTruncated>
      <NextContinuationToken>1ueGcxLPRx1Tr/XYExHnhbYLgveDs2J/wm36Hy4vbOwM=</NextContinuationToken>
      <Contents><Key>models/a.safetensors</Key><LastModified>2009-10-12T17:50:30.000Z</LastModified>
        <ETag>&quot;fba9dede5f27731c9771645a39863328&quot;</ETag><Size>434234</Size><StorageClass>STANDARD</StorageClass>
        <Owner><ID>1</ID><DisplayName>x</DisplayName></Owner></Contents>
      <Contents><Key>models/b.safetensors</Key><Size>18446744073709551615</Size></Contents>
      <CommonPrefixes><Prefix>models/x/</Prefix></CommonPrefixes>
      <CommonPrefixes><Prefix>models/y/</Prefix><Prefix>models/z/</Prefix></CommonPrefixes>)"));
    REQUIRE(listing.objects.size() == 2);
    CHECK(listing.objects[0].key == "models/a.safetensors");
    CHECK(listing.objects[0].size == 434234);
    CHECK(listing.objects[0].etag == "\"fba9dede5f27731c9771645a39863328\"");
    CHECK(listing.objects[1].size == 18446744073709551615U);
    CHECK(listing.objects[1].etag.empty());
    CHECK(listing.common_prefixes ==
          std::vector<std::string>{"models/x/", "models/y/", "models/z/"});
    CHECK(listing.is_truncated);
    CHECK(listing.next_continuation_token == "1ueGcxLPRx1Tr/XYExHnhbYLgveDs2J/wm36Hy4vbOwM=");
  }

  TEST_CASE("an empty listing is a listing") {
    const auto listing = listing_of(page("<Prefix/><IsTruncated>false</IsTruncated>"));
    CHECK(listing.objects.empty());
    CHECK_FALSE(listing.is_truncated);
    CHECK(listing_of("<ListBucketResult/>").objects.empty());
  }

  TEST_CASE("any namespace or prefix of names will do, and a byte order mark") {
    CHECK(
        listing_of(
            "<s3:ListBucketResult xmlns:s3='urn:x'><s3:Contents><s3:Key>k</s3:Key><s3:Size>1</s3:Size></s3:Contents>"
            "</s3:ListBucketResult>")
            .objects.size() == 1);
    CHECK(listing_of("\xEF\xBB\xBF" + page(object("k"))).objects.size() == 1);
  }

  TEST_CASE("keys are what they were, with every kind of escape") {
    CHECK(key_of("a&amp;b&lt;c&gt;&quot;&apos;") == "a&b<c>\"'");
    CHECK(key_of("caf\xC3\xA9/\xE6\xB0\xB4") == "caf\xC3\xA9/\xE6\xB0\xB4");
    CHECK(key_of("&#x6C34;&#233;") == "\xE6\xB0\xB4\xC3\xA9");
    CHECK(key_of("a<![CDATA[&<b>]]>c") == "a&<b>c");
    CHECK(key_of("a<!-- x -->b") == "ab");
    CHECK(key_of(" a  b ") == " a  b ");
    CHECK(key_of(" ") == " ");
    CHECK(key_of("a%20+b") == "a%20+b");
    CHECK(key_of("&#1;x") == "\x01x");
  }

  TEST_CASE("with the encoding url keys and prefixes are decoded, the token is not") {
    const std::string_view url = "<EncodingType>url</EncodingType>";
    CHECK(key_of("a%20b+c%2Bd%252F", url) == "a b c+d%2F");
    CHECK(key_of("%E6%B0%B4%0A", url) == "\xE6\xB0\xB4\n");
    CHECK(key_of("a%26amp%3Bb", url) == "a&amp;b");
    const auto listing = listing_of(page(
        std::string(url) +
        "<CommonPrefixes><Prefix>a+b%2F</Prefix></CommonPrefixes><IsTruncated>true</IsTruncated>"
        "<NextContinuationToken>a+b%2F</NextContinuationToken>"));
    CHECK(listing.common_prefixes == std::vector<std::string>{"a b/"});
    CHECK(listing.next_continuation_token == "a+b%2F");
    // The encoding may be said after the keys.
    CHECK(listing_of(page(object("a%20b") + std::string(url))).objects[0].key == "a b");
    is_refused(page(std::string(url) + object("a%2")));
    is_refused(page(std::string(url) + object("a%zz")));
    is_refused(page("<EncodingType>base64</EncodingType>" + object("a")));
  }

  TEST_CASE("objects without a readable key or size are refused") {
    is_refused(page("<Contents><Size>1</Size></Contents>"));
    is_refused(page("<Contents><Key>a</Key></Contents>"));
    is_refused(page("<Contents><Key></Key><Size>1</Size></Contents>"));
    is_refused(page("<Contents><Key>a<b/></Key><Size>1</Size></Contents>"));
    is_refused(page("<Contents><Key>a</Key><Key>b</Key><Size>1</Size></Contents>"));
    for (const auto* size : {"", "-1", "+1", "1.5", " 1", "0x1", "18446744073709551616", "many"}) {
      is_refused(page(object("a", size)));
    }
    is_refused(page("<CommonPrefixes><Prefix/></CommonPrefixes>"));
  }

  TEST_CASE("a truncated page without a token would be asked for for ever, and is refused") {
    is_refused(page("<IsTruncated>true</IsTruncated>"));
    is_refused(page("<IsTruncated>true</IsTruncated><NextContinuationToken/>"));
    is_refused(page("<IsTruncated>perhaps</IsTruncated>"));
    is_refused(page("<IsTruncated>false</IsTruncated><IsTruncated>true</IsTruncated>"));
  }

  TEST_CASE("what is no listing, or no XML, is refused") {
    for (const auto* body :
         {"", " ", "not xml", "<", "<a", "<html><body>hello</body></html>", "{\"Contents\":[]}",
          "<ListBucketResult>", "<ListBucketResult></ListBucket>",
          "<ListBucketResult/><ListBucketResult/>", "<ListAllMyBucketsResult/>",
          "<ListBucketResult><Contents></ListBucketResult></Contents>", "<?xml version=\"1.0\"?>",
          "<!-- only -->"}) {
      CAPTURE(std::string(body));
      is_refused(body);
    }
    is_refused(page(object(std::string("a\0b", 3))));
    is_refused(page(object("a")) + std::string(1, '\0') + "x");
    const auto whole = page(object("key") + "<IsTruncated>false</IsTruncated>");
    for (std::size_t size = 0; size < whole.size(); ++size) is_refused(whole.substr(0, size));
  }

  TEST_CASE("an error where a listing was promised carries the store's code") {
    auto listing = parse_s3_listing("<Error><Code>InternalError</Code></Error>");
    REQUIRE_FALSE(listing.has_value());
    CHECK(listing.error().kind() == errc::protocol_error);
    CHECK(listing.error().context().server_code == "InternalError");
  }

  TEST_CASE("no entity is ever declared, expanded or passed on") {
    is_refused("<!DOCTYPE x [<!ENTITY a \"aaaa\"><!ENTITY b \"&a;&a;\">]>" + page(object("&b;")));
    is_refused("<!DOCTYPE x SYSTEM \"file:///etc/passwd\">" + page(object("a")));
    is_refused("<!DOCTYPE ListBucketResult>" + page(object("a")));
    for (const auto* entity :
         {"&xxe;", "&", "a & b", "&;", "&#;", "&#x;", "&#0;", "&#x0;", "&#xD800;", "&#x110000;",
          "&#99999999999999999999;", "&#-1;", "&#xg;", "&amp", "&nbsp;"}) {
      CAPTURE(std::string(entity));
      is_refused(page(object(entity)));
    }
  }

  TEST_CASE("hostile sizes and depths end in an error and not in memory") {
    is_refused(std::string(headrace::max_listing_body + 1, ' '));
    std::string deep;
    for (int i = 0; i < 200'000; ++i) deep += "<a>";
    is_refused(deep);
    for (int i = 0; i < 200'000; ++i) deep += "</a>";
    is_refused(deep);
    is_refused(page(deep));
    std::string many;
    while (many.size() < headrace::max_listing_body - 1000) many += "<a/>";
    is_refused(page(many));
    std::string keys;
    for (int i = 0; i < 10'001; ++i) keys += object("k");
    is_refused(page(keys));
    keys.resize(keys.size() - object("k").size());
    CHECK(listing_of(page(keys)).objects.size() == 10'000);
  }

  TEST_CASE("a full page of the longest keys fits") {
    std::string keys;
    const std::string longest = [] {
      std::string key;
      for (int i = 0; i < 1024; ++i) key += "%E6";
      return key;
    }();
    for (int i = 0; i < 1000; ++i) keys += object(longest, "5000000000000");
    const auto listing = listing_of(page("<EncodingType>url</EncodingType>" + keys));
    CHECK(listing.objects.size() == 1000);
    CHECK(listing.objects[0].key.size() == 1024);
  }

  TEST_CASE("an error gives its code, message, request id and where to go instead") {
    auto parsed = parse_s3_error(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>PermanentRedirect</Code><Message>The bucket you are attempting to "
        "access must be addressed using the specified endpoint.</Message><Endpoint>bucket.s3.eu-west-1.amazonaws.com</Endpoint>"
        "<Bucket>bucket</Bucket><RequestId>4442587FB7D0A2F9</RequestId><HostId>abc</HostId></Error>");
    REQUIRE(parsed.has_value());
    CHECK(parsed->code == "PermanentRedirect");
    CHECK(
        parsed->message ==
        "The bucket you are attempting to access must be addressed using the specified endpoint.");
    CHECK(parsed->endpoint == "bucket.s3.eu-west-1.amazonaws.com");
    CHECK(parsed->request_id == "4442587FB7D0A2F9");
    CHECK(parsed->region.empty());

    parsed = parse_s3_error(
        "<Error xmlns='urn:x'><Code>AuthorizationHeaderMalformed</Code><Region>eu-west-1</Region></Error>");
    REQUIRE(parsed.has_value());
    CHECK(parsed->region == "eu-west-1");

    parsed = parse_s3_error(
        "<ErrorResponse><Error><Type>Sender</Type><Code>AccessDenied</Code></Error><RequestId>r1</RequestId></ErrorResponse>");
    REQUIRE(parsed.has_value());
    CHECK(parsed->code == "AccessDenied");
    CHECK(parsed->request_id == "r1");
  }

  TEST_CASE("what a peer says is made fit for one line") {
    auto parsed = parse_s3_error(
        "<Error><Code>Bad\nCode</Code><Message>one\r\ntwo&#27;[31m\xC2\x9Bthree&#127;</Message>"
        "<RequestId>a b</RequestId><Region>evil.example/@</Region><Endpoint>host/../x</Endpoint></Error>");
    REQUIRE(parsed.has_value());
    CHECK(parsed->code.empty());
    CHECK(parsed->message == "one two [31m three");
    CHECK(parsed->request_id.empty());
    CHECK(parsed->region.empty());
    CHECK(parsed->endpoint.empty());

    parsed = parse_s3_error("<Error><Message>a\xFF\xC3\xA9</Message></Error>");
    REQUIRE(parsed.has_value());
    CHECK(parsed->message == "a???");

    std::string text = "a";
    for (int i = 0; i < 1000; ++i) text += "\xE6\xB0\xB4";
    parsed = parse_s3_error("<Error><Message>" + text + "</Message></Error>");
    REQUIRE(parsed.has_value());
    CHECK(parsed->message == text.substr(0, 511));
  }

  TEST_CASE("a body that is not S3's is no error of S3") {
    for (const auto* body : {"", "<html><body>502 Bad Gateway</body></html>", "Service Unavailable",
                             "<Error/>", "<Error><Code/></Error>", "<ListBucketResult/>",
                             "<ErrorResponse/>", "<Error><Code>a</Code>"}) {
      CAPTURE(std::string(body));
      CHECK_FALSE(parse_s3_error(body).has_value());
    }
    CHECK_FALSE(parse_s3_error("<Error><Code>a</Code><Message>" +
                               std::string(headrace::max_error_body, 'x') + "</Message></Error>")
                    .has_value());
  }
}
