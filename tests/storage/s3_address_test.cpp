#include "storage/s3_address.hpp"

#include <doctest/doctest.h>

#include <string>
#include <string_view>

using headrace::aws_settings;
using headrace::errc;
using headrace::make_s3_address;
using headrace::s3_address;
using headrace::uri;

namespace {

aws_settings at(std::string endpoint, std::string region = "") {
  aws_settings settings;
  settings.endpoint = std::move(endpoint);
  settings.region = std::move(region);
  return settings;
}

uri location_of(std::string_view text) {
  auto location = uri::parse(text);
  REQUIRE(location.has_value());
  return *location;
}

s3_address address_of(std::string_view text, const aws_settings& settings) {
  auto address = make_s3_address(location_of(text), settings);
  REQUIRE_MESSAGE(address.has_value(), std::string(text));
  return *address;
}

headrace::error refusal(std::string_view text, const aws_settings& settings = {}) {
  auto address = make_s3_address(location_of(text), settings);
  REQUIRE_MESSAGE(!address.has_value(), std::string(text));
  return address.error();
}

}  // namespace

TEST_SUITE("unit") {
  TEST_CASE("a bucket of AWS is a virtual host in its region") {
    const auto address = address_of("s3://bucket/models/minilm", at("", "eu-west-1"));
    CHECK(address.scheme == "https");
    CHECK(address.host == "bucket.s3.eu-west-1.amazonaws.com");
    CHECK(address.host_field() == "bucket.s3.eu-west-1.amazonaws.com");
    CHECK(address.port == 443);
    CHECK(address.base_path.empty());
    CHECK_FALSE(address.path_style);
    CHECK(address.region == "eu-west-1");
    CHECK(address.region_known);
    CHECK(address.bucket == "bucket");
    CHECK(address.key == "models/minilm");
    CHECK(address.bucket_path() == "/");
    CHECK(address.object_path("models/a b+%20/c") == "/models/a%20b%2B%2520/c");
  }

  TEST_CASE("without a region requests go to us-east-1 and follow what the store says") {
    const auto address = address_of("s3://bucket", at(""));
    CHECK(address.host == "bucket.s3.us-east-1.amazonaws.com");
    CHECK(address.region == "us-east-1");
    CHECK_FALSE(address.region_known);
    auto moved = address.in_region("ap-south-1");
    REQUIRE(moved.has_value());
    CHECK(moved->host == "bucket.s3.ap-south-1.amazonaws.com");
    CHECK(moved->region == "ap-south-1");
    CHECK(moved->region_known);
  }

  TEST_CASE("a region that the store names must be one") {
    const auto aws = address_of("s3://bucket", at(""));
    const auto own = address_of("s3://bucket", at("http://localhost:9000"));
    for (const auto* region :
         {"", "evil.example/", "a b", "eu-west-1.evil.example", "-x", "EU", "a\r\nb", "a@b"}) {
      CAPTURE(std::string(region));
      auto moved = aws.in_region(region);
      REQUIRE_FALSE(moved.has_value());
      CHECK(moved.error().kind() == errc::protocol_error);
    }
    CHECK_FALSE(own.in_region("a b").has_value());
    auto moved = own.in_region("Region.1");
    REQUIRE(moved.has_value());
    CHECK(moved->host == "localhost");
    CHECK(moved->region == "Region.1");
  }

  TEST_CASE("bucket names that no certificate or host name covers stand in the path") {
    for (const auto* bucket : {"my.bucket", "MyBucket", "my_bucket", "-bucket"}) {
      CAPTURE(std::string(bucket));
      const auto address = address_of("s3://" + std::string(bucket) + "/k", at("", "eu-west-1"));
      CHECK(address.path_style);
      CHECK(address.host == "s3.eu-west-1.amazonaws.com");
      CHECK(address.bucket_path() == "/" + std::string(bucket));
      CHECK(address.object_path("k") == "/" + std::string(bucket) + "/k");
      auto moved = address.in_region("us-west-2");
      REQUIRE(moved.has_value());
      CHECK(moved->host == "s3.us-west-2.amazonaws.com");
    }
  }

  TEST_CASE("China has a domain of its own") {
    CHECK(address_of("s3://bucket", at("", "cn-north-1")).host ==
          "bucket.s3.cn-north-1.amazonaws.com.cn");
  }

  TEST_CASE("other endpoints have the bucket in the path and keep their port and path") {
    auto address = address_of("s3://models/minilm", at("http://127.0.0.1:9000"));
    CHECK(address.scheme == "http");
    CHECK(address.host == "127.0.0.1");
    CHECK(address.port == 9000);
    CHECK(address.host_field() == "127.0.0.1:9000");
    CHECK(address.path_style);
    CHECK(address.bucket_path() == "/models");
    CHECK(address.object_path("a//b/../c") == "/models/a//b/../c");
    CHECK(address.region == "us-east-1");

    address = address_of("s3://models", at("https://store.example/s3/", "fr-par"));
    CHECK(address.host_field() == "store.example");
    CHECK(address.port == 443);
    CHECK(address.bucket_path() == "/s3/models");
    CHECK(address.object_path("k") == "/s3/models/k");
    CHECK(address.region == "fr-par");

    address = address_of("s3://models", at("http://[::1]:9000/"));
    CHECK(address.host == "::1");
    CHECK(address.port == 9000);
    CHECK(address.host_field() == "[::1]:9000");
    address = address_of("s3://models", at("http://[::1]"));
    CHECK(address.host == "::1");
    CHECK(address.port == 80);
    CHECK(address.host_field() == "[::1]");
    CHECK(address_of("s3://models", at("https://h:80")).host_field() == "h:80");
    CHECK(address_of("s3://models", at("https://h:443")).host_field() == "h");
  }

  TEST_CASE("an endpoint of AWS is asked by virtual host and tells its region") {
    auto address = address_of("s3://bucket", at("https://s3.eu-central-1.amazonaws.com"));
    CHECK(address.host == "bucket.s3.eu-central-1.amazonaws.com");
    CHECK(address.region == "eu-central-1");
    CHECK(address.region_known);
    CHECK_FALSE(address.path_style);
    CHECK(address_of("s3://b", at("https://s3.dualstack.eu-west-3.amazonaws.com")).region ==
          "eu-west-3");
    CHECK(
        address_of("s3://b", at("https://bucket.vpce-1.s3.us-west-2.vpce.amazonaws.com")).region ==
        "us-west-2");
    CHECK(address_of("s3://b", at("https://s3.amazonaws.com")).region == "us-east-1");
    CHECK_FALSE(address_of("s3://b", at("https://s3.amazonaws.com")).region_known);
    CHECK(address_of("s3://b", at("https://s3.eu-west-1.amazonaws.com", "eu-west-2")).region ==
          "eu-west-2");
    // Looks like AWS and is not.
    CHECK(address_of("s3://b", at("https://s3.eu-west-1.amazonaws.com.evil.example")).path_style);
    CHECK(address_of("s3://b", at("https://evilamazonaws.com")).path_style);
  }

  TEST_CASE("the style can be chosen, where it is possible") {
    auto settings = at("", "eu-west-1");
    settings.path_style = true;
    CHECK(address_of("s3://bucket", settings).host == "s3.eu-west-1.amazonaws.com");
    settings.path_style = false;
    CHECK(address_of("s3://my.bucket", settings).host == "my.bucket.s3.eu-west-1.amazonaws.com");
    for (const auto* text : {"s3://MyBucket", "s3://my_bucket", "s3://a..b", "s3://.a"}) {
      CHECK(refusal(text, settings).kind() == errc::invalid_request);
    }
    settings = at("https://store.example:8443");
    settings.path_style = false;
    const auto address = address_of("s3://bucket/k", settings);
    CHECK(address.host_field() == "bucket.store.example:8443");
    CHECK(address.bucket_path() == "/");
    CHECK(address.object_path("k") == "/k");
    for (const auto* endpoint : {"http://127.0.0.1:9000", "http://[::1]:9000"}) {
      settings.endpoint = endpoint;
      CHECK(refusal("s3://bucket", settings).kind() == errc::invalid_request);
    }
  }

  TEST_CASE("a version in the URI is kept apart from the key") {
    auto address =
        address_of("s3://bucket/a/b.safetensors?versionId=L4kqtJlcpXroDTDmpUMLUo", at(""));
    CHECK(address.key == "a/b.safetensors");
    CHECK(address.version_id == "L4kqtJlcpXroDTDmpUMLUo");
    for (const auto* key : {"a?versionId=", "a?versionid=x", "a?versionId=x/b", "a?x=1&versionId=y",
                            "a?versionId=x&y=z", "a?b"}) {
      CAPTURE(std::string(key));
      address = address_of("s3://bucket/" + std::string(key), at(""));
      CHECK(address.key == key);
      CHECK(address.version_id.empty());
    }
  }

  TEST_CASE("bucket names that are none are refused") {
    for (const auto* text : {"s3://a b/k", "s3://a?b/k", "s3://../k", "s3://./k", "s3://a%2Fb/k",
                             "s3://b\xC3\xA9/k", "s3://a#b"}) {
      CAPTURE(std::string(text));
      CHECK(refusal(text).kind() == errc::invalid_request);
    }
    CHECK(refusal("s3://" + std::string(300, 'a')).kind() == errc::invalid_request);
    CHECK(refusal("s3://models--use1-az4--x-s3/key").kind() == errc::unsupported);
    CHECK(address_of("s3://models--use1-az4--x-s3/key", at("http://h")).bucket ==
          "models--use1-az4--x-s3");
    CHECK(address_of("s3://name-abcdefghijklmnopqrstuvwxyz123456-s3alias/key", {}).host ==
          "name-abcdefghijklmnopqrstuvwxyz123456-s3alias.s3.us-east-1.amazonaws.com");
    CHECK(refusal("s3://arn:aws:s3:eu-west-1:123456789012:accesspoint/name/key").kind() ==
          errc::unsupported);
  }

  TEST_CASE("keys in the URI or in the endpoint are refused and not repeated") {
    auto refused = refusal("s3://AKIDVALUE@bucket/k");
    CHECK(refused.kind() == errc::invalid_request);
    CHECK(refused.reason().find("AKIDVALUE") == std::string::npos);
    refused = refusal("s3://bucket/k", at("http://user:SECRETVALUE@host:9000"));
    CHECK(refused.kind() == errc::invalid_request);
    CHECK(refused.reason().find("SECRETVALUE") == std::string::npos);
  }

  TEST_CASE("an endpoint that is no URL of a server is refused") {
    for (const auto* endpoint : {"localhost:9000", "host", "ftp://host", "s3://bucket", "http://",
                                 "http://host:99999", "http://h?x=y", "/path", "http://ho st"}) {
      CAPTURE(std::string(endpoint));
      CHECK(refusal("s3://bucket/k", at(endpoint)).kind() == errc::invalid_request);
    }
    CHECK(refusal("s3://bucket/k", at("", "EU West")).kind() == errc::invalid_request);
    CHECK(refusal("s3://bucket/k", at("", "eu.west")).kind() == errc::invalid_request);
    CHECK(refusal("gs://bucket/k").kind() == errc::invalid_request);
  }
}
