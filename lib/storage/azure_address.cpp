#include "storage/azure_address.hpp"

#include "storage/percent.hpp"
#include "storage/text.hpp"

#include <array>
#include <cstddef>
#include <utility>

namespace headrace {
namespace {

failure<error> refused(const std::string& message) {
  return failure{error(errc::invalid_request, message)};
}

bool is_lower_name(std::string_view name) noexcept {
  return !name.empty() && name.size() <= 63 && detail::all(name, [](char c) {
    return detail::is_digit(c) || (c >= 'a' && c <= 'z') || c == '-';
  });
}

// `$root`, `$web` and `$logs` beside those that users make.
bool is_container_name(std::string_view name) noexcept {
  if (name.starts_with('$')) name.remove_prefix(1);
  return is_lower_name(name);
}

bool is_ipv4(std::string_view host) noexcept {
  return !host.empty() && detail::all(host, [](char c) { return detail::is_digit(c) || c == '.'; });
}

// An address, `localhost`, a machine beside ours: what no account can be a label of.
bool has_account_in_path(std::string_view host) noexcept {
  return host.find('.') == std::string_view::npos || is_ipv4(host);
}

// `account.dfs.core.windows.net` → `account.blob.core.windows.net`. With zones and private
// endpoints there are labels in between.
std::string blob_host(std::string_view host) {
  constexpr std::string_view files = ".dfs.";
  const auto label = host.find(files);
  if (label == std::string_view::npos) return std::string(host);
  return std::string(host.substr(0, label)) + ".blob." +
         std::string(host.substr(label + files.size()));
}

bool holds_signature(std::string_view key) {
  const auto mark = key.find('?');
  return mark != std::string_view::npos && key.find("sig=", mark) != std::string_view::npos;
}

}  // namespace

result<azure_location> parse_azure_location(const uri& location) {
  const std::string expected =
      "expected az://container/prefix or abfss://container@account.dfs.core.windows.net/prefix";
  if (!location.user_info.empty()) return refused("an az:// URI has no '@': " + expected);
  if (holds_signature(location.path)) {
    return refused(
        "a shared access signature does not belong into the URI: set AZURE_STORAGE_SAS_TOKEN, and write the URI without '?' and what follows");
  }
  azure_location read;
  read.key = location.path;
  const auto at = location.authority.rfind('@');
  read.container = location.authority.substr(0, at);
  if (location.scheme != "az") {
    if (at == std::string::npos)
      return refused("the URI does not name the storage account: " + expected);
    const std::string host = detail::lower(location.authority.substr(at + 1));
    const auto dot = host.find('.');
    read.account = host.substr(0, dot);
    if (!is_account_name(read.account) || !detail::is_host(host))
      return refused("the URI names no storage account behind '@': " + expected);
    // `container@account` alone is in the public cloud.
    if (dot != std::string::npos) read.host = blob_host(host);
  }
  if (!is_container_name(read.container)) {
    return refused(
        "the container's name holds a character that containers' names do not have: expected lower-case letters, digits and '-'");
  }
  return read;
}

result<blob_endpoint> parse_blob_endpoint(std::string_view text) {
  constexpr auto expected =
      "the endpoint is no URL of a blob service: expected https://account.blob.core.windows.net or http://host:port/account";
  // Without its own message: a password in it must not be repeated.
  auto location = uri::parse(text);
  if (!location || (location->scheme != "http" && location->scheme != "https"))
    return refused(expected);
  if (!location->user_info.empty()) {
    return refused(
        "the endpoint holds a user or a password: set AZURE_STORAGE_ACCOUNT_KEY instead");
  }
  if (!location->query.empty()) {
    return refused(
        "the endpoint must not have a query: a shared access signature belongs into AZURE_STORAGE_SAS_TOKEN");
  }
  auto origin = http_origin::of(*location);
  if (!origin) return refused(expected);
  blob_endpoint read;
  read.origin = std::move(*origin);
  if (is_azure_host(read.origin.host)) read.origin.host = blob_host(read.origin.host);
  read.path = location->path;
  while (read.path.ends_with('/')) read.path.pop_back();
  if (is_azure_host(read.origin.host)) {
    read.account = read.origin.host.substr(0, read.origin.host.find('.'));
  } else if (has_account_in_path(read.origin.host) && !read.path.empty()) {
    const auto parts = std::string_view(read.path).substr(1);
    read.account = parts.substr(0, parts.find('/'));
  }
  if (!read.account.empty() && !is_account_name(read.account)) read.account.clear();
  return read;
}

result<blob_endpoint> of_account(blob_endpoint endpoint, std::string_view account) {
  if (!account.empty()) endpoint.account = account;
  if (endpoint.path.empty() && has_account_in_path(endpoint.origin.host)) {
    if (endpoint.account.empty()) {
      return refused(
          "the endpoint does not say which storage account: set AZURE_STORAGE_ACCOUNT_NAME, or write http://host:port/account");
    }
    endpoint.path = '/' + endpoint.account;
  }
  return endpoint;
}

std::string azure_address::container_path() const {
  return endpoint.path + '/' + percent_encode(container, slash::encoded);
}

std::string azure_address::blob_path(std::string_view name) const {
  return container_path() + '/' + percent_encode(name);
}

bool is_account_name(std::string_view name) noexcept { return is_lower_name(name); }

bool is_azure_host(std::string_view host) noexcept {
  constexpr std::array<std::string_view, 6> suffixes{
      ".core.windows.net", ".core.chinacloudapi.cn", ".core.usgovcloudapi.net",
      ".core.cloudapi.de", ".storage.azure.net",     ".fabric.microsoft.com"};
  for (const auto suffix : suffixes) {
    if (host.ends_with(suffix)) return true;
  }
  return false;
}

bool is_loopback(std::string_view host) noexcept {
  return host == "localhost" || host == "::1" || (is_ipv4(host) && host.starts_with("127."));
}

}  // namespace headrace
