#include "storage/azure_address.hpp"

#include <doctest/doctest.h>

#include <string>

using headrace::azure_address;
using headrace::azure_location;
using headrace::blob_endpoint;
using headrace::errc;
using headrace::is_azure_host;
using headrace::is_loopback;
using headrace::of_account;
using headrace::parse_azure_location;
using headrace::parse_blob_endpoint;
using headrace::uri;

namespace {

azure_location location_of(const std::string& text) {
  const auto parsed = uri::parse(text);
  REQUIRE(parsed);
  auto location = parse_azure_location(*parsed);
  REQUIRE_MESSAGE(location, text);
  return *location;
}

std::string refusal_of(const std::string& text) {
  const auto parsed = uri::parse(text);
  if (!parsed) return parsed.error().reason();
  const auto location = parse_azure_location(*parsed);
  REQUIRE_MESSAGE(!location, text);
  CHECK(location.error().kind() == errc::invalid_request);
  return location.error().reason();
}

blob_endpoint endpoint_of(const std::string& text, const std::string& account = {}) {
  auto endpoint = parse_blob_endpoint(text);
  REQUIRE_MESSAGE(endpoint, text);
  auto settled = of_account(*endpoint, account);
  REQUIRE_MESSAGE(settled, text);
  return *settled;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_SUITE("unit") {
  TEST_CASE("az:// names a container and a prefix, taken literally") {
    const auto location = location_of("az://models/a b/100%25+c//d");
    CHECK(location.container == "models");
    CHECK(location.key == "a b/100%25+c//d");
    CHECK(location.account.empty());
    CHECK(location.host.empty());
  }

  TEST_CASE("abfs:// names the account, and blobs are asked for at its blob endpoint") {
    for (const std::string scheme : {"abfs", "abfss"}) {
      const auto location =
          location_of(scheme + "://models@Account1.dfs.core.windows.net/llama/8b");
      CHECK(location.container == "models");
      CHECK(location.account == "account1");
      CHECK(location.host == "account1.blob.core.windows.net");
      CHECK(location.key == "llama/8b");
    }
  }

  TEST_CASE("the suffixes of other clouds are kept") {
    const auto host = [](const std::string& there) {
      return location_of("abfss://c@" + there + "/p").host;
    };
    CHECK(host("a.dfs.core.chinacloudapi.cn") == "a.blob.core.chinacloudapi.cn");
    CHECK(host("a.dfs.core.usgovcloudapi.net") == "a.blob.core.usgovcloudapi.net");
    CHECK(host("a.z03.dfs.storage.azure.net") == "a.z03.blob.storage.azure.net");
    CHECK(host("a.privatelink.dfs.core.windows.net") == "a.privatelink.blob.core.windows.net");
    CHECK(host("onelake.dfs.fabric.microsoft.com") == "onelake.blob.fabric.microsoft.com");
    CHECK(host("a.blob.core.windows.net") == "a.blob.core.windows.net");
    CHECK(host("a").empty());
  }

  TEST_CASE("what names no container or account is refused, and says what is expected") {
    CHECK(contains(refusal_of("abfss://models/llama"), "abfss://container@account"));
    CHECK(contains(refusal_of("abfss://models@/llama"), "behind '@'"));
    CHECK(contains(refusal_of("abfss://models@.dfs.core.windows.net/llama"), "behind '@'"));
    CHECK(contains(refusal_of("abfss://models@acc_ount.dfs.core.windows.net/x"), "behind '@'"));
    CHECK(contains(refusal_of("az://models@account/llama"), "no '@'"));
    CHECK(contains(refusal_of("az://Models/llama"), "lower-case"));
    CHECK(contains(refusal_of("az://mo_dels/llama"), "lower-case"));
    CHECK(contains(refusal_of("az://" + std::string(64, 'a') + "/llama"), "container"));
    CHECK(location_of("az://$web/llama").container == "$web");
  }

  TEST_CASE("a signature in the URI is refused and not repeated") {
    const auto refusal = refusal_of("az://models/llama?sv=2021-12-02&sig=hunter2");
    CHECK(contains(refusal, "AZURE_STORAGE_SAS_TOKEN"));
    CHECK_FALSE(contains(refusal, "hunter2"));
    CHECK(location_of("az://models/what?/x").key == "what?/x");
  }

  TEST_CASE("an endpoint names its account in the host or in the path") {
    const auto cloud = endpoint_of("https://account1.blob.core.windows.net/");
    CHECK(cloud.account == "account1");
    CHECK(cloud.path.empty());
    CHECK(cloud.origin.port == 443);
    CHECK(endpoint_of("https://account1.dfs.core.windows.net").origin.host ==
          "account1.blob.core.windows.net");
    const auto emulator = endpoint_of("http://127.0.0.1:10000/devstoreaccount1/");
    CHECK(emulator.account == "devstoreaccount1");
    CHECK(emulator.path == "/devstoreaccount1");
    CHECK(endpoint_of("http://127.0.0.1:10000", "mine").path == "/mine");
    CHECK(endpoint_of("http://azurite:10000", "mine").path == "/mine");
    CHECK(endpoint_of("http://[::1]:10000", "mine").path == "/mine");
    CHECK(endpoint_of("https://weights.example.com", "mine").path.empty());
    CHECK(endpoint_of("https://weights.example.com").account.empty());
    CHECK(endpoint_of("https://weights.example.com/through/here").path == "/through/here");
  }

  TEST_CASE("an endpoint that is none is refused without being repeated") {
    const auto refusal = [](const std::string& text) {
      const auto endpoint = parse_blob_endpoint(text);
      REQUIRE_MESSAGE(!endpoint, text);
      CHECK(endpoint.error().kind() == errc::invalid_request);
      return endpoint.error().reason();
    };
    CHECK(contains(refusal("account.blob.core.windows.net"), "expected https://"));
    CHECK(contains(refusal("ftp://account/"), "expected https://"));
    const auto password = refusal("https://user:hunter2@account.blob.core.windows.net");
    CHECK_FALSE(contains(password, "hunter2"));
    const auto signature = refusal("https://account.blob.core.windows.net/?sig=hunter2");
    CHECK(contains(signature, "AZURE_STORAGE_SAS_TOKEN"));
    CHECK_FALSE(contains(signature, "hunter2"));
    const auto nobody = of_account(parse_blob_endpoint("http://127.0.0.1:10000").value(), "");
    REQUIRE_FALSE(nobody);
    CHECK(contains(nobody.error().reason(), "AZURE_STORAGE_ACCOUNT_NAME"));
  }

  TEST_CASE("paths are encoded once, and nothing is normalised") {
    const azure_address emulator{endpoint_of("http://127.0.0.1:10000/devstoreaccount1"), "models"};
    CHECK(emulator.container_path() == "/devstoreaccount1/models");
    CHECK(emulator.blob_path("a b/100%+c//../\xC3\xA4~") ==
          "/devstoreaccount1/models/a%20b/100%25%2Bc//../%C3%A4~");
    const azure_address cloud{endpoint_of("https://a.blob.core.windows.net"), "$web"};
    CHECK(cloud.container_path() == "/%24web");
  }

  TEST_CASE("only Azure's hosts are Azure's, only loopback is loopback") {
    CHECK(is_azure_host("a.blob.core.windows.net"));
    CHECK_FALSE(is_azure_host("core.windows.net.example.com"));
    CHECK_FALSE(is_azure_host("evilcore.windows.net"));
    CHECK(is_loopback("127.0.0.1"));
    CHECK(is_loopback("localhost"));
    CHECK(is_loopback("::1"));
    CHECK_FALSE(is_loopback("127.0.0.1.example.com"));
    CHECK_FALSE(is_loopback("128.0.0.1"));
  }
}
