#include "storage/azure_environment.hpp"

#include "storage/shared_key.hpp"

#include <doctest/doctest.h>

#include <map>
#include <optional>
#include <string>
#include <variant>

using headrace::azure_account_key;
using headrace::azure_anonymous;
using headrace::azure_settings;
using headrace::entra_settings;
using headrace::errc;
using headrace::sas_token;
using headrace::storage_options;

namespace {

using variables = std::map<std::string, std::string>;

headrace::result<azure_settings> read(const std::string& text, const variables& set,
                                      const storage_options& options = {}) {
  const auto parsed = headrace::uri::parse(text);
  REQUIRE(parsed);
  const auto location = headrace::parse_azure_location(*parsed);
  REQUIRE(location);
  return read_azure_settings(*location, options,
                             [&set](const char* name) -> std::optional<std::string> {
                               const auto found = set.find(name);
                               if (found == set.end()) return std::nullopt;
                               return found->second;
                             });
}

azure_settings settings_of(const std::string& text, const variables& set,
                           const storage_options& options = {}) {
  auto settings = read(text, set, options);
  REQUIRE_MESSAGE(settings, (settings ? "" : settings.error().what()));
  return *settings;
}

azure_settings settings_of(const variables& set, const storage_options& options = {}) {
  return settings_of("az://models/llama", set, options);
}

std::string refusal(const std::string& text, const variables& set,
                    const storage_options& options = {}) {
  auto settings = read(text, set, options);
  REQUIRE_FALSE(settings);
  CHECK(settings.error().kind() == errc::invalid_request);
  const std::string said = settings.error().what();
  CHECK(said.find("hunter2") == std::string::npos);
  return said;
}

std::string refusal(const variables& set, const storage_options& options = {}) {
  return refusal("az://models/llama", set, options);
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::string url_of(const azure_settings& settings) {
  return settings.endpoint.origin.to_string() + settings.endpoint.path;
}

const entra_settings& entra_of(const azure_settings& settings) {
  const auto* const found = std::get_if<entra_settings>(&settings.credential);
  REQUIRE(found != nullptr);
  return *found;
}

const std::string key = "aHVudGVyMg==";  // hunter2
const std::string sas = "sv=2021-12-02&sp=rl&sig=hunter2";
const variables key_of_mine = {{"AZURE_STORAGE_ACCOUNT_NAME", "mine"},
                               {"AZURE_STORAGE_ACCOUNT_KEY", key}};

variables with(variables set, const variables& more) {
  for (const auto& [name, value] : more) set[name] = value;
  return set;
}

}  // namespace

TEST_SUITE("unit") {
  TEST_CASE("each link of the chain is found, in this order") {
    storage_options options;
    options.account = "mine";
    options.token = "token";
    variables set = {
        {"AZURE_STORAGE_CONNECTION_STRING", "AccountName=mine;AccountKey=" + key},
        {"AZURE_STORAGE_ACCOUNT_KEY", key},
        {"AZURE_STORAGE_SAS_TOKEN", sas},
        {"AZURE_TENANT_ID", "contoso.example"},
        {"AZURE_CLIENT_ID", "app"},
        {"AZURE_CLIENT_SECRET", "hunter2"},
        {"AZURE_FEDERATED_TOKEN_FILE", "/var/run/token"},
        {"IDENTITY_ENDPOINT", "http://127.0.0.1:8081/msi/token/"},
        {"IDENTITY_HEADER", "hunter2"},
    };
    CHECK(settings_of(set, options).source == "the option storage.token");
    options.token.clear();
    CHECK(settings_of(set, options).source == "the account key in AZURE_STORAGE_CONNECTION_STRING");
    set.erase("AZURE_STORAGE_CONNECTION_STRING");
    CHECK(settings_of(set, options).source == "the variable AZURE_STORAGE_ACCOUNT_KEY");
    set.erase("AZURE_STORAGE_ACCOUNT_KEY");
    CHECK(settings_of(set, options).source == "the variable AZURE_STORAGE_SAS_TOKEN");
    set.erase("AZURE_STORAGE_SAS_TOKEN");
    CHECK(entra_of(settings_of(set, options)).from == entra_settings::source::client_secret);
    set.erase("AZURE_CLIENT_SECRET");
    CHECK(entra_of(settings_of(set, options)).from == entra_settings::source::workload_identity);
    set.erase("AZURE_FEDERATED_TOKEN_FILE");
    CHECK(entra_of(settings_of(set, options)).from == entra_settings::source::app_service);
    set.erase("IDENTITY_ENDPOINT");
    set.erase("IDENTITY_HEADER");
    const auto machine = settings_of(set, options);
    CHECK(entra_of(machine).from == entra_settings::source::machine);
    CHECK(entra_of(machine).service.origin.host == "169.254.169.254");
    CHECK(entra_of(machine).client_id == "app");
    options.anonymous = true;
    CHECK(std::get<azure_anonymous>(settings_of(set, options).credential).wanted);
  }

  TEST_CASE("the account comes from the URI, the options, the connection string, the variables") {
    CHECK(url_of(settings_of(key_of_mine)) == "https://mine.blob.core.windows.net:443");
    CHECK(settings_of({{"AZURE_STORAGE_ACCOUNT", "other"}, {"AZURE_STORAGE_KEY", key}})
              .endpoint.account == "other");
    storage_options options;
    options.account = "mine";
    CHECK(settings_of({{"AZURE_STORAGE_KEY", key}}, options).endpoint.account == "mine");
    const auto named =
        settings_of("abfss://c@mine.dfs.core.chinacloudapi.cn/p", {{"AZURE_STORAGE_KEY", key}});
    CHECK(named.endpoint.account == "mine");
    CHECK(url_of(named) == "https://mine.blob.core.chinacloudapi.cn:443");
    CHECK(url_of(settings_of("abfss://c@mine/p", {})) == "https://mine.blob.core.windows.net:443");
    CHECK(contains(refusal({{"AZURE_STORAGE_KEY", key}}), "AZURE_STORAGE_ACCOUNT_NAME"));
    CHECK(contains(refusal({}), "AZURE_STORAGE_CONNECTION_STRING"));
    CHECK(contains(refusal({{"AZURE_STORAGE_ACCOUNT", "No Name"}}), "AZURE_STORAGE_ACCOUNT is no"));
  }

  TEST_CASE("credentials of another account are not sent") {
    const std::string location = "abfss://c@theirs.dfs.core.windows.net/p";
    CHECK(contains(refusal(location, key_of_mine), "'mine'"));
    CHECK(contains(
        refusal(location, {{"AZURE_STORAGE_ACCOUNT", "mine"}, {"AZURE_STORAGE_SAS_TOKEN", sas}}),
        "AZURE_STORAGE_ACCOUNT with AZURE_STORAGE_SAS_TOKEN"));
    const variables connection = {
        {"AZURE_STORAGE_CONNECTION_STRING", "AccountName=mine;AccountKey=" + key}};
    CHECK(contains(refusal(location, connection), "AZURE_STORAGE_CONNECTION_STRING is for"));
    const variables by_endpoint = {
        {"AZURE_STORAGE_CONNECTION_STRING",
         "BlobEndpoint=https://mine.blob.core.windows.net/;SharedAccessSignature=" + sas}};
    CHECK(contains(refusal(location, by_endpoint), "AZURE_STORAGE_CONNECTION_STRING is for"));
    storage_options options;
    options.account = "mine";
    CHECK(contains(refusal(location, {}, options), "storage.account"));
    // Who brings a token, or none at all, does not mean the string.
    storage_options token;
    token.token = "token";
    CHECK(url_of(settings_of(location, connection, token)) ==
          "https://theirs.blob.core.windows.net:443");
    // An account that is merely named is no credential.
    CHECK(settings_of(location, {{"AZURE_STORAGE_ACCOUNT", "mine"}}).endpoint.account == "theirs");
  }

  TEST_CASE("a connection string is read as the tools write it") {
    const auto read_from = [](const std::string& text) {
      return settings_of({{"AZURE_STORAGE_CONNECTION_STRING", text}});
    };
    const auto cloud =
        read_from("DefaultEndpointsProtocol=https;AccountName=mine;AccountKey=" + key +
                  ";EndpointSuffix=core.usgovcloudapi.net");
    CHECK(url_of(cloud) == "https://mine.blob.core.usgovcloudapi.net:443");
    CHECK(std::get<azure_account_key>(cloud.credential).key == "hunter2");
    const auto shared = read_from(
        "BlobEndpoint=https://mine.blob.core.windows.net/;"
        "QueueEndpoint=https://mine.queue.core.windows.net/;"
        "SharedAccessSignature=" +
        sas);
    CHECK(shared.endpoint.account == "mine");
    CHECK(std::get<sas_token>(shared.credential).query == sas);
    const auto emulator = read_from("UseDevelopmentStorage=true");
    CHECK(url_of(emulator) == "http://127.0.0.1:10000/devstoreaccount1");
    CHECK(emulator.endpoint.account == "devstoreaccount1");
    CHECK(std::holds_alternative<azure_account_key>(emulator.credential));
    CHECK(
        url_of(read_from("UseDevelopmentStorage=true;DevelopmentStorageProxyUri=http://azurite")) ==
        "http://azurite:80/devstoreaccount1");
    const auto there = read_from("accountname=dev; accountkey=" + key +
                                 " ;blobendpoint=http://127.0.0.1:4000/dev;");
    CHECK(url_of(there) == "http://127.0.0.1:4000/dev");
    CHECK(url_of(read_from("DefaultEndpointsProtocol=http;AccountName=mine;AccountKey=" + key)) ==
          "http://mine.blob.core.windows.net:80");
  }

  TEST_CASE("a connection string that is none is refused without being repeated") {
    const auto said = [](const std::string& text) {
      return refusal({{"AZURE_STORAGE_CONNECTION_STRING", text}});
    };
    CHECK(contains(said("hunter2"), "not Name=value"));
    CHECK(contains(said("AccountName=mine"), "neither AccountKey nor SharedAccessSignature"));
    CHECK(contains(said("AccountKey=" + key), "without AccountName"));
    CHECK(contains(said("SharedAccessSignature=" + sas), "neither AccountName nor BlobEndpoint"));
    CHECK(contains(said("AccountName=mine;AccountKey=hunter2!"), "not base64"));
    CHECK(contains(said("AccountName=mine;SharedAccessSignature=hunter2"), "no shared access"));
    CHECK(contains(said("AccountName=hunter2@x;AccountKey=" + key), "AccountName that is no"));
    CHECK(
        contains(said("AccountName=mine;EndpointSuffix=a/b;AccountKey=" + key), "EndpointSuffix"));
    CHECK(contains(said("AccountName=mine;DefaultEndpointsProtocol=ftp;AccountKey=" + key),
                   "ftp") == false);
    CHECK(contains(said("AccountName=mine;BlobEndpoint=mine;AccountKey=" + key), "BlobEndpoint"));
    CHECK(contains(said(std::string(20'000, 'x')), "16 KiB"));
  }

  TEST_CASE("keys and signatures that are wrong are named by their variable") {
    const variables account = {{"AZURE_STORAGE_ACCOUNT", "mine"}};
    CHECK(contains(refusal(with(account, {{"AZURE_STORAGE_ACCOUNT_KEY", "hunter2!"}})),
                   "AZURE_STORAGE_ACCOUNT_KEY is not base64"));
    CHECK(contains(refusal(with(account, {{"AZURE_STORAGE_KEY", "hunter2!"}})),
                   "AZURE_STORAGE_KEY is not base64"));
    CHECK(contains(refusal(with(account, {{"AZURE_STORAGE_SAS_TOKEN", "hunter2"}})),
                   "AZURE_STORAGE_SAS_TOKEN is no shared access signature"));
    storage_options options;
    options.token = "hunter2 ";
    CHECK(contains(refusal(account, options), "storage.token"));
    options.token = "hunter2";
    options.anonymous = true;
    CHECK(contains(refusal(account, options), "exclude each other"));
  }

  TEST_CASE("half of an identity is refused, naming what is missing") {
    const variables account = {{"AZURE_STORAGE_ACCOUNT", "mine"}};
    const auto said = [&account](const variables& more) { return refusal(with(account, more)); };
    CHECK(contains(said({{"AZURE_CLIENT_SECRET", "hunter2"}, {"AZURE_CLIENT_ID", "app"}}),
                   "AZURE_CLIENT_SECRET is set, but AZURE_TENANT_ID is not"));
    CHECK(contains(said({{"AZURE_CLIENT_SECRET", "hunter2"}, {"AZURE_TENANT_ID", "t"}}),
                   "AZURE_CLIENT_SECRET is set, but AZURE_CLIENT_ID is not"));
    CHECK(contains(said({{"AZURE_FEDERATED_TOKEN_FILE", "/f"}}),
                   "AZURE_FEDERATED_TOKEN_FILE is set, but AZURE_TENANT_ID is not"));
    CHECK(contains(said({{"IDENTITY_ENDPOINT", "http://127.0.0.1/"}}),
                   "IDENTITY_ENDPOINT is set, but IDENTITY_HEADER is not"));
    CHECK(contains(said({{"IDENTITY_HEADER", "hunter2"}}),
                   "IDENTITY_HEADER is set, but IDENTITY_ENDPOINT is not"));
  }

  TEST_CASE("an identity's variables are checked before anything is sent") {
    const variables identity = {{"AZURE_STORAGE_ACCOUNT", "mine"},
                                {"AZURE_TENANT_ID", "contoso.example"},
                                {"AZURE_CLIENT_ID", "app"},
                                {"AZURE_CLIENT_SECRET", "hunter2"}};
    const auto authority = [&identity](const std::string& host) {
      return entra_of(settings_of(with(identity, {{"AZURE_AUTHORITY_HOST", host}}))).service;
    };
    CHECK(entra_of(settings_of(identity)).service.origin.to_string() ==
          "https://login.microsoftonline.com:443");
    CHECK(authority("login.microsoftonline.us").origin.host == "login.microsoftonline.us");
    CHECK(authority("https://login.chinacloudapi.cn/").path.empty());
    CHECK(authority("http://127.0.0.1:1234").origin.port == 1234);
    const auto said = [&identity](const variables& more) { return refusal(with(identity, more)); };
    CHECK(contains(said({{"AZURE_AUTHORITY_HOST", "http://login.microsoftonline.com"}}),
                   "in the clear"));
    CHECK(contains(said({{"AZURE_AUTHORITY_HOST", "https://u:hunter2@login.microsoftonline.com"}}),
                   "AZURE_AUTHORITY_HOST is no URL"));
    CHECK(contains(said({{"AZURE_TENANT_ID", "a/../b"}}), "AZURE_TENANT_ID"));
    CHECK(contains(said({{"AZURE_CLIENT_ID", "a b"}}), "AZURE_CLIENT_ID"));
    CHECK(contains(said({{"AZURE_CLIENT_SECRET", "hunter2\n"}}), "AZURE_CLIENT_SECRET"));
  }

  TEST_CASE("the emulator's account goes to the emulator with the key that it has") {
    storage_options options;
    options.account = "devstoreaccount1";
    const auto settings = settings_of(variables{}, options);
    CHECK(url_of(settings) == "http://127.0.0.1:10000/devstoreaccount1");
    CHECK(settings.source == "the key that every emulator has");
    storage_options elsewhere;
    elsewhere.endpoint = "http://127.0.0.1:4000/devstoreaccount1";
    CHECK(settings_of(variables{}, elsewhere).endpoint.account == "devstoreaccount1");
    CHECK(contains(refusal(key_of_mine, elsewhere), "'devstoreaccount1'"));
  }

  TEST_CASE("neither tokens nor signatures go where the URI alone leads") {
    CHECK(contains(refusal("abfss://c@mine.dfs.example.com/p", {{"AZURE_STORAGE_SAS_TOKEN", sas}}),
                   "storage.endpoint"));
    storage_options options;
    options.endpoint = "https://mine.blob.example.com";
    CHECK(url_of(settings_of("abfss://c@mine.dfs.example.com/p", {{"AZURE_STORAGE_SAS_TOKEN", sas}},
                             options)) == "https://mine.blob.example.com:443");
    storage_options clear;
    clear.endpoint = "http://mine.blob.core.windows.net";
    clear.token = "hunter2";
    CHECK(contains(refusal(variables{}, clear), "without TLS"));
    clear.token.clear();
    CHECK(contains(refusal(variables{}, clear), "without TLS"));
    clear.anonymous = true;
    CHECK(url_of(settings_of(variables{}, clear)) == "http://mine.blob.core.windows.net:80");
  }
}
