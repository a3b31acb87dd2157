#include "storage/azure_answers.hpp"

#include <doctest/doctest.h>

#include <string>
#include <string_view>

using headrace::azure_blob;
using headrace::azure_listing;
using headrace::errc;
using headrace::parse_azure_error;
using headrace::parse_azure_listing;

namespace {

azure_listing listing_of(const std::string& body) {
  auto listing = parse_azure_listing(body);
  REQUIRE_MESSAGE(listing.has_value(), body.substr(0, 400));
  return *listing;
}

void is_refused(const std::string& body) {
  auto listing = parse_azure_listing(body);
  REQUIRE_MESSAGE(!listing.has_value(), body.substr(0, 400));
  CHECK(listing.error().kind() == errc::protocol_error);
}

std::string page(std::string_view inside, std::string_view after = "<NextMarker />") {
  return "\xEF\xBB\xBF<?xml version=\"1.0\" encoding=\"utf-8\"?><EnumerationResults "
         "ServiceEndpoint=\"https://a.blob.core.windows.net/\" ContainerName=\"models\"><Blobs>" +
         std::string(inside) + "</Blobs>" + std::string(after) + "</EnumerationResults>";
}

std::string blob(std::string_view name, std::string_view more = "", std::string_view size = "1") {
  return "<Blob><Name>" + std::string(name) + "</Name><Properties><Content-Length>" +
         std::string(size) + "</Content-Length>" + std::string(more) + "</Properties></Blob>";
}

}  // namespace

TEST_SUITE("unit") {
  TEST_CASE("a listing gives names, sizes, prefixes and the way to the next page") {
    const auto listing = listing_of(page(
        R"(<Blob><Name>m/a.safetensors</Name><Properties>
             <Creation-Time>Wed, 26 Aug 2024 08:00:00 GMT</Creation-Time><Etag>0x8DCC1</Etag>
             <Content-Length>18446744073709551615</Content-Length><BlobType>BlockBlob</BlobType>
             </Properties><Metadata><note>x</note></Metadata><OrMetadata /></Blob>
           <BlobPrefix><Name>m/sub/</Name></BlobPrefix>)",
        "<NextMarker>2!92!MDAwMDEx--</NextMarker>"));
    REQUIRE(listing.blobs.size() == 1);
    CHECK(listing.blobs[0] == azure_blob{"m/a.safetensors", 18446744073709551615U});
    CHECK(listing.prefixes == std::vector<std::string>{"m/sub/"});
    CHECK(listing.next_marker == "2!92!MDAwMDEx--");
    CHECK(listing_of(page("")).next_marker.empty());
    CHECK(listing_of(page("", "")).next_marker.empty());
  }

  TEST_CASE("names are literal but for those that say that they are encoded") {
    const auto name = [](const std::string& element) {
      const auto listing = listing_of(page("<Blob>" + element +
                                           "<Properties><Content-Length>1</Content-Length>"
                                           "</Properties></Blob>"));
      REQUIRE(listing.blobs.size() == 1);
      return listing.blobs[0].name;
    };
    CHECK(name("<Name>a b+c%20&amp;\xC3\xA4</Name>") == "a b+c%20&\xC3\xA4");
    CHECK(name("<Name Encoded=\"true\">a%20b+c%EF%BF%BF</Name>") == "a b+c\xEF\xBF\xBF");
    CHECK(name("<Name Encoded=\"false\">a%20b</Name>") == "a%20b");
    CHECK(name("<Name>  </Name>") == "  ");
    is_refused(page("<Blob><Name Encoded=\"true\">%zz</Name></Blob>"));
    is_refused(page("<Blob><Name Encoded=\"base64\">YQ==</Name></Blob>"));
  }

  TEST_CASE("directories of a hierarchical namespace are no blobs") {
    const auto listing = listing_of(
        page(blob("m/dir", "<ResourceType>directory</ResourceType>", "0") +
             blob("m/file", "<ResourceType>file</ResourceType>") +
             "<Blob><Name>m/old</Name><Properties><Content-Length>0</Content-Length></Properties>"
             "<Metadata><Hdi_isfolder>true</Hdi_isfolder></Metadata></Blob>"
             "<Blob><Name>m/no</Name><Properties><Content-Length>0</Content-Length></Properties>"
             "<Metadata><hdi_isfolder>false</hdi_isfolder></Metadata></Blob>"));
    REQUIRE(listing.blobs.size() == 2);
    CHECK(listing.blobs[0].name == "m/file");
    CHECK(listing.blobs[1].name == "m/no");
  }

  TEST_CASE("what is no listing is refused") {
    is_refused("");
    is_refused("<html>a captive portal</html>");
    is_refused("<EnumerationResults>");
    is_refused("<EnumerationResults/>");
    is_refused("<Error><Code>ServerBusy</Code></Error>");
    is_refused("<!DOCTYPE x [<!ENTITY y \"z\">]>" + page(""));
    is_refused(page("<Blob><Properties><Content-Length>1</Content-Length></Properties></Blob>"));
    is_refused(page("<Blob><Name>x</Name></Blob>"));
    is_refused(page(blob("x", "", "-1")));
    is_refused(page(blob("x", "", "18446744073709551616")));
    is_refused(page(blob("x", "<Content-Length>2</Content-Length>")));
    is_refused(
        page("<Blob><Name>x</Name><Name>y</Name><Properties><Content-Length>1"
             "</Content-Length></Properties></Blob>"));
    is_refused(page("<BlobPrefix/>"));
    is_refused(page("", "<NextMarker>a</NextMarker><NextMarker>b</NextMarker>"));
    is_refused(page("", "<NextMarker><x/></NextMarker>"));
  }

  TEST_CASE("a page of 5,000 is read, a longer one and one over the bound are refused") {
    std::string many;
    for (int i = 0; i < 5000; ++i) many += blob("m/" + std::to_string(i));
    CHECK(listing_of(page(many)).blobs.size() == 5000);
    is_refused(page(many + blob("m/one-too-many")));
    is_refused(std::string(headrace::max_azure_listing_body + 1, ' '));
  }

  TEST_CASE("an error gives its code and its words, without id, time and signature") {
    const auto said = parse_azure_error(
        "\xEF\xBB\xBF<?xml version=\"1.0\" encoding=\"utf-8\"?><Error><Code>AuthenticationFailed"
        "</Code><Message>Server failed to authenticate the request.\nRequestId:7b1b\n"
        "Time:2024-02-29T12:34:56Z</Message><AuthenticationErrorDetail>The MAC signature found in "
        "the HTTP request 'hunter2' is not the same.</AuthenticationErrorDetail></Error>");
    REQUIRE(said);
    CHECK(said->code == "AuthenticationFailed");
    CHECK(said->message == "Server failed to authenticate the request.");
  }

  TEST_CASE("an error that is not Azure's says nothing, and what a peer sends is bounded") {
    CHECK_FALSE(parse_azure_error(""));
    CHECK_FALSE(parse_azure_error("<html>502</html>"));
    CHECK_FALSE(parse_azure_error("<Error></Error>"));
    CHECK_FALSE(parse_azure_error(std::string(headrace::max_azure_error_body + 1, 'x')));
    const auto said = parse_azure_error("<Error><Code>a b</Code><Message>x\x1b[31m" +
                                        std::string(2000, 'y') + "</Message></Error>");
    REQUIRE(said);
    CHECK(said->code.empty());
    CHECK(said->message.size() <= 512);
    CHECK(said->message.find('\x1b') == std::string::npos);
  }
}
