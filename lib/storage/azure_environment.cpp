#include "storage/azure_environment.hpp"

#include "storage/shared_key.hpp"
#include "storage/text.hpp"

#include <cstddef>
#include <initializer_list>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

namespace headrace {
namespace {

constexpr std::string_view emulator_key =
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";
constexpr std::string_view emulator_endpoint = "http://127.0.0.1:10000/devstoreaccount1";
constexpr const char* connection_variable = "AZURE_STORAGE_CONNECTION_STRING";
constexpr std::size_t longest_connection_string = 16 * 1024;

failure<error> refused(const std::string& message) {
  return failure{error(errc::invalid_request, message)};
}

bool is_host_name(std::string_view text) noexcept {
  return detail::is_host(text) && text.find(':') == std::string_view::npos;
}

// --- The connection string ---

struct connection_string {
  std::string account;
  std::string key;  ///< As it is written.
  std::string sas;
  std::string endpoint;
  std::string suffix = "core.windows.net";
  std::string protocol = "https";
};

failure<error> refused_connection(const std::string& what) {
  return refused(std::string(connection_variable) + ' ' + what +
                 ": copy it anew from the account's access keys or shared access signatures");
}

result<connection_string> parse_connection_string(std::string_view text) {
  if (text.size() > longest_connection_string) return refused_connection("is longer than 16 KiB");
  std::map<std::string, std::string> parts;
  while (!text.empty()) {
    const auto end = text.find(';');
    auto part = detail::trimmed(text.substr(0, end));
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
    if (part.empty()) continue;
    const auto equals = part.find('=');
    // Never the part itself: it may be the key.
    if (equals == std::string_view::npos || equals == 0)
      return refused_connection("has a part that is not Name=value");
    parts[detail::lower(detail::trimmed(part.substr(0, equals)))] =
        detail::trimmed(part.substr(equals + 1));
  }
  connection_string read;
  if (detail::same_name(parts["usedevelopmentstorage"], "true")) {
    read.account = emulator_account;
    read.key = emulator_key;
    read.endpoint = emulator_endpoint;
    if (const auto& proxy = parts["developmentstorageproxyuri"]; !proxy.empty())
      read.endpoint = proxy + (proxy.ends_with('/') ? "" : "/") + std::string(emulator_account);
    return read;
  }
  read.account = parts["accountname"];
  read.key = parts["accountkey"];
  read.sas = parts["sharedaccesssignature"];
  read.endpoint = parts["blobendpoint"];
  if (auto& suffix = parts["endpointsuffix"]; !suffix.empty()) read.suffix = std::move(suffix);
  if (auto& protocol = parts["defaultendpointsprotocol"]; !protocol.empty())
    read.protocol = detail::lower(protocol);
  if (read.key.empty() && read.sas.empty())
    return refused_connection("holds neither AccountKey nor SharedAccessSignature");
  if (!read.key.empty() && read.account.empty())
    return refused_connection("holds AccountKey without AccountName");
  if (read.account.empty() && read.endpoint.empty())
    return refused_connection("holds neither AccountName nor BlobEndpoint");
  if (!read.endpoint.empty()) {
    auto endpoint = parse_blob_endpoint(read.endpoint);
    if (!endpoint) return refused_connection("holds a BlobEndpoint that is no URL of a service");
    if (read.account.empty()) read.account = endpoint->account;
  }
  if (!read.account.empty() && !is_account_name(read.account))
    return refused_connection("holds an AccountName that is no name of an account");
  if (!is_host_name(read.suffix))
    return refused_connection("holds an EndpointSuffix that is no name of a host");
  if (read.protocol != "https" && read.protocol != "http")
    return refused_connection("holds a DefaultEndpointsProtocol that is neither https nor http");
  return read;
}

// --- Entra ---

result<token_service> parse_service(const std::string& text, const char* variable,
                                    bool holds_secret) {
  const std::string expected =
      std::string(variable) + " is no URL of a service: expected https://host[:port][/path]";
  // Without the parser's own message: a password in it must not be repeated.
  auto location = uri::parse(text);
  if (!location || (location->scheme != "http" && location->scheme != "https") ||
      !location->user_info.empty() || !location->query.empty()) {
    return refused(expected);
  }
  auto origin = http_origin::of(*location);
  if (!origin) return refused(expected);
  if (holds_secret && !origin->is_secure() && !is_loopback(origin->host)) {
    return refused(
        std::string(variable) +
        " is an http:// URL, and the secret would be sent in the clear: expected https://");
  }
  return token_service{std::move(*origin), std::move(location->path)};
}

// A host alone has no path to go before ours.
void cut_slashes(token_service& service) {
  while (service.path.ends_with('/')) service.path.pop_back();
}

result<void> check_visible(std::initializer_list<const named_value*> values) {
  for (const auto* set : values) {
    if (!detail::all(set->value, detail::is_visible)) {
      return refused(std::string(set->name) +
                     " holds a space, a line end or another character that it cannot have");
    }
  }
  return {};
}

bool is_tenant(std::string_view text) noexcept {
  return text.size() <= 253 && detail::all(text, [](char c) {
           return detail::is_alphanumeric(c) || c == '-' || c == '.';
         });
}

result<entra_settings> application(const variable_lookup& variable, const named_value& secret,
                                   const named_value& file) {
  const bool by_secret = !secret.value.empty();
  const char* const what = by_secret ? secret.name : file.name;
  const auto tenant = first_of(variable, {"AZURE_TENANT_ID"});
  const auto client = first_of(variable, {"AZURE_CLIENT_ID"});
  const auto authority = first_of(variable, {"AZURE_AUTHORITY_HOST"});
  if (tenant.value.empty() || client.value.empty()) {
    const char* const missing = tenant.value.empty() ? "AZURE_TENANT_ID" : "AZURE_CLIENT_ID";
    return refused(std::string(what) + " is set, but " + missing +
                   " is not: set AZURE_TENANT_ID and AZURE_CLIENT_ID with it, or none of them");
  }
  if (auto checked = check_visible({&client, &secret}); !checked) return failure{checked.error()};
  if (!is_tenant(tenant.value))
    return refused("AZURE_TENANT_ID is neither the id nor the domain of a tenant");
  std::string host =
      authority.value.empty() ? "https://login.microsoftonline.com" : authority.value;
  if (host.find("://") == std::string::npos) host.insert(0, "https://");
  auto service = parse_service(host, "AZURE_AUTHORITY_HOST", true);
  if (!service) return failure{service.error()};
  cut_slashes(*service);
  return entra_settings{.from = by_secret ? entra_settings::source::client_secret
                                          : entra_settings::source::workload_identity,
                        .service = std::move(*service),
                        .tenant = tenant.value,
                        .client_id = client.value,
                        .client_secret = secret.value,
                        .token_file = by_secret ? std::string() : file.value,
                        .identity_header = {}};
}

struct found_identity {
  entra_settings settings;
  std::string source;
};

result<found_identity> identity_of(const variable_lookup& variable) {
  const auto secret = first_of(variable, {"AZURE_CLIENT_SECRET"});
  const auto file = first_of(variable, {"AZURE_FEDERATED_TOKEN_FILE"});
  if (!secret.value.empty() || !file.value.empty()) {
    auto settings = application(variable, secret, file);
    if (!settings) return failure{settings.error()};
    std::string source =
        secret.value.empty()
            ? "workload identity, by the token file of AZURE_FEDERATED_TOKEN_FILE"
            : "the variables AZURE_TENANT_ID, AZURE_CLIENT_ID and AZURE_CLIENT_SECRET";
    return found_identity{std::move(*settings), std::move(source)};
  }

  entra_settings settings;
  const auto client = first_of(variable, {"AZURE_CLIENT_ID"});
  const auto endpoint = first_of(variable, {"IDENTITY_ENDPOINT"});
  const auto header = first_of(variable, {"IDENTITY_HEADER"});
  if (auto checked = check_visible({&client, &header}); !checked) return failure{checked.error()};
  settings.client_id = client.value;
  if (endpoint.value.empty() != header.value.empty()) {
    const bool lacks_header = header.value.empty();
    return refused(
        std::string(lacks_header ? endpoint.name : header.name) + " is set, but " +
        (lacks_header ? "IDENTITY_HEADER" : "IDENTITY_ENDPOINT") +
        " is not: set both, as App Service does, or neither (Azure Arc's identities are not supported)");
  }
  if (!endpoint.value.empty()) {
    auto service = parse_service(endpoint.value, "IDENTITY_ENDPOINT", false);
    if (!service) return failure{service.error()};
    settings.from = entra_settings::source::app_service;
    settings.service = std::move(*service);
    settings.identity_header = header.value;
    return found_identity{std::move(settings),
                          "managed identity, by IDENTITY_ENDPOINT and IDENTITY_HEADER"};
  }
  const auto host = first_of(variable, {"AZURE_POD_IDENTITY_AUTHORITY_HOST"});
  auto service = parse_service(host.value.empty() ? "http://169.254.169.254" : host.value,
                               "AZURE_POD_IDENTITY_AUTHORITY_HOST", false);
  if (!service) return failure{service.error()};
  cut_slashes(*service);
  settings.from = entra_settings::source::machine;
  settings.service = std::move(*service);
  return found_identity{std::move(settings), "managed identity, by the machine's metadata service"};
}

// --- The chain ---

result<azure_account_key> read_key(std::string_view text, const std::string& where) {
  auto key = decode_account_key(text);
  if (!key) return refused(where + " is not base64: copy the key anew from the account");
  return azure_account_key{*std::move(key)};
}

result<sas_token> read_sas(std::string_view text, const std::string& where) {
  auto token = parse_sas_token(text);
  if (!token) {
    return refused(where +
                   " is no shared access signature: expected sv=…&sig=…, as the portal gives it");
  }
  return *std::move(token);
}

failure<error> other_account(const std::string& what, const std::string& theirs,
                             const std::string& ours) {
  return refused(what + " is for the account '" + theirs + "', and '" + ours +
                 "' is asked for: unset it, or name the same account");
}

// The account that is asked for, as far as the URI and the options name it.
result<std::string> account_of(const azure_location& location, const storage_options& options) {
  if (!options.account.empty() && !is_account_name(options.account)) {
    return refused(
        "storage.account is no name of a storage account: expected lower-case letters and digits");
  }
  if (!options.account.empty() && !location.account.empty() && options.account != location.account)
    return other_account("storage.account", options.account, location.account);
  if (!location.account.empty()) return location.account;
  if (!options.account.empty() || options.endpoint.empty()) return options.account;
  auto endpoint = parse_blob_endpoint(options.endpoint);
  if (!endpoint) return failure{endpoint.error()};
  return endpoint->account;
}

result<blob_endpoint> endpoint_of(const std::string& account, const azure_location& location,
                                  const storage_options& options,
                                  const std::optional<connection_string>& connection) {
  std::string url = options.endpoint;
  if (url.empty() && connection) url = connection->endpoint;
  std::string host = location.host;
  std::string protocol = "https";
  if (url.empty() && host.empty() && connection && !account.empty()) {
    host = account + ".blob." + connection->suffix;
    protocol = connection->protocol;
  }
  if (url.empty() && host.empty() && account == emulator_account) url = emulator_endpoint;
  if (url.empty() && host.empty() && !account.empty()) host = account + ".blob.core.windows.net";
  if (!url.empty()) {
    auto endpoint = parse_blob_endpoint(url);
    if (!endpoint) return failure{endpoint.error()};
    return of_account(std::move(*endpoint), account);
  }
  if (host.empty()) {
    return refused(
        "an az:// URI does not say which storage account: set AZURE_STORAGE_ACCOUNT_NAME or AZURE_STORAGE_CONNECTION_STRING, or write abfss://container@account.dfs.core.windows.net/prefix");
  }
  // Whoever set an endpoint or a connection string knows where it leads; a URI may be anybody's.
  if (!location.host.empty() && !is_azure_host(host)) {
    return refused(
        "the host in the URI is none of Azure's, and credentials would be sent to it: set the option storage.endpoint to https://host if that is meant");
  }
  return blob_endpoint{{protocol, std::move(host), default_port(protocol)}, {}, account};
}

// What one link of the chain gives.
template <class Credential>
result<void> settle(azure_settings& settings, result<Credential> found, std::string source) {
  if (!found) return failure{found.error()};
  settings.credential = std::move(*found);
  settings.source = std::move(source);
  return {};
}

result<void> choose(azure_settings& settings, const std::optional<connection_string>& connection,
                    const named_value& account, const storage_options& options,
                    const variable_lookup& variable) {
  if (options.anonymous) {
    settings.credential = azure_anonymous{.wanted = true};
    settings.source = "none: requests are anonymous, as the options say";
    return {};
  }
  if (!options.token.empty()) {
    return settle(settings, result<azure_bearer>(azure_bearer{options.token}),
                  "the option storage.token");
  }
  const std::string of_connection = connection_variable;
  if (connection && !connection->key.empty()) {
    return settle(settings, read_key(connection->key, "AccountKey in " + of_connection),
                  "the account key in " + of_connection);
  }
  if (connection) {
    return settle(settings, read_sas(connection->sas, "SharedAccessSignature in " + of_connection),
                  "the shared access signature in " + of_connection);
  }
  const auto key = first_of(variable, {"AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_KEY"});
  const auto sas = first_of(variable, {"AZURE_STORAGE_SAS_TOKEN"});
  const auto& used = key.value.empty() ? sas : key;
  if (!used.value.empty() && !account.value.empty() && account.value != settings.endpoint.account) {
    return other_account(std::string(account.name) + " with " + used.name, account.value,
                         settings.endpoint.account);
  }
  if (!key.value.empty())
    return settle(settings, read_key(key.value, key.name), "the variable " + std::string(key.name));
  if (!sas.value.empty())
    return settle(settings, read_sas(sas.value, sas.name), "the variable " + std::string(sas.name));
  if (settings.endpoint.account == emulator_account) {
    return settle(settings, read_key(emulator_key, "the emulator's key"),
                  "the key that every emulator has");
  }
  auto identity = identity_of(variable);
  if (!identity) return failure{identity.error()};
  settings.credential = std::move(identity->settings);
  settings.source = std::move(identity->source);
  return {};
}

}  // namespace

result<azure_settings> read_azure_settings(const azure_location& location,
                                           const storage_options& options,
                                           const variable_lookup& variable) {
  if (auto checked = check(options); !checked) return failure{checked.error()};
  if (options.anonymous && !options.token.empty())
    return refused("storage.anonymous and storage.token exclude each other: set one of them");
  if (!detail::all(options.token, detail::is_visible)) {
    return refused(
        "storage.token holds a space, a line end or another character that tokens do not have");
  }
  auto named = account_of(location, options);
  if (!named) return failure{named.error()};

  std::optional<connection_string> connection;
  if (const auto set = first_of(variable, {connection_variable}); !set.value.empty()) {
    auto parsed = parse_connection_string(set.value);
    if (!parsed) return failure{parsed.error()};
    // Beside an explicit token, the string of another account is simply not meant.
    const bool ours = named->empty() || parsed->account.empty() || parsed->account == *named;
    if (!ours && !options.anonymous && options.token.empty())
      return other_account(connection_variable, parsed->account, *named);
    if (ours) connection = std::move(*parsed);
  }
  if (named->empty() && connection) *named = connection->account;
  const auto account = first_of(variable, {"AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT"});
  if (named->empty() && !connection) {
    if (!account.value.empty() && !is_account_name(account.value)) {
      return refused(std::string(account.name) +
                     " is no name of a storage account: expected lower-case letters and digits");
    }
    *named = account.value;
  }

  azure_settings settings;
  auto endpoint = endpoint_of(*named, location, options, connection);
  if (!endpoint) return failure{endpoint.error()};
  settings.endpoint = std::move(*endpoint);
  if (auto chosen = choose(settings, connection, account, options, variable); !chosen)
    return failure{chosen.error()};

  const bool is_key = std::holds_alternative<azure_account_key>(settings.credential);
  if (is_key && settings.endpoint.account.empty()) {
    return refused(settings.source +
                   " does not say which storage account it is of: set AZURE_STORAGE_ACCOUNT_NAME");
  }
  const bool sends_token = std::holds_alternative<azure_bearer>(settings.credential) ||
                           std::holds_alternative<entra_settings>(settings.credential);
  const http_origin& origin = settings.endpoint.origin;
  if (sends_token && !origin.is_secure() && !is_loopback(origin.host)) {
    return refused(
        "a token is not sent without TLS, and the endpoint is an http:// URL: write https://, or set storage.anonymous where no token is needed");
  }
  return settings;
}

}  // namespace headrace
