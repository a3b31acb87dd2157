#pragma once

#include <headrace/base/result.hpp>
#include <headrace/base/uri.hpp>
#include <headrace/http/http_origin.hpp>

#include <string>
#include <string_view>

namespace headrace {

/// What an Azure URI names.
struct azure_location {
  std::string container;
  std::string account;  ///< Empty where the URI does not name one.
  std::string host;     ///< Of the account's blobs; empty where the URI does not name one.
  std::string key;      ///< An object, or a prefix.
};

/// Reads `az://container/prefix` and `abfs[s]://container@account.dfs.core.windows.net/prefix`, of
/// whichever cloud. Errors are `invalid_request`: no name of a container or of an account, a
/// signature inside the URI, which is not repeated.
[[nodiscard]] result<azure_location> parse_azure_location(const uri& location);

/// Where an account's blobs are.
struct blob_endpoint {
  http_origin origin;
  /// Percent-encoded, without a `/` at its end: the account, where the host does not name it (the
  /// emulator).
  std::string path;
  std::string account;  ///< Empty where neither host nor path name it.
};

/// Reads `https://account.blob.core.windows.net` or `http://host:port[/account]`. Errors are
/// `invalid_request` and repeat nothing of it: no URL, a password, a query.
[[nodiscard]] result<blob_endpoint> parse_blob_endpoint(std::string_view text);

/// The endpoint of `account`, where that is known: put into the path where the host is an address
/// or has no domain and there is no path. Errors are `invalid_request`: nobody says which account
/// would stand there.
[[nodiscard]] result<blob_endpoint> of_account(blob_endpoint endpoint, std::string_view account);

/// A container, and how the paths of its requests look.
struct azure_address {
  blob_endpoint endpoint;
  std::string container;

  /// The path of the container's own requests, such as listings.
  [[nodiscard]] std::string container_path() const;

  /// The path of a blob's requests: `name` percent-encoded once, nothing normalised.
  [[nodiscard]] std::string blob_path(std::string_view name) const;
};

/// The account of the emulator, which has it in its paths.
inline constexpr std::string_view emulator_account = "devstoreaccount1";

[[nodiscard]] bool is_account_name(std::string_view name) noexcept;

/// Whether storage of Azure is there, in any of its clouds.
[[nodiscard]] bool is_azure_host(std::string_view host) noexcept;

/// Whether a host can only be this machine: a secret may be sent there without TLS.
[[nodiscard]] bool is_loopback(std::string_view host) noexcept;

}  // namespace headrace
