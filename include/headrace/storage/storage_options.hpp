#pragma once

#include <headrace/base/export.hpp>
#include <headrace/base/result.hpp>
#include <headrace/storage/aws_credentials.hpp>

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace headrace {

/// How stores are reached. What is left empty comes from the environment, as the stores' own tools
/// read it; what is set here beats the environment.
///
///     open_options options;
///     options.storage.endpoint = "http://127.0.0.1:9000";
struct storage_options {
  /// `http(s)://host[:port][/path]` of an S3 store that is not AWS. Empty: `AWS_ENDPOINT_URL_S3`,
  /// `AWS_ENDPOINT_URL`, AWS. Likewise for GCS (`STORAGE_EMULATOR_HOST`) and the Hub
  /// (`HF_ENDPOINT`).
  std::string endpoint;

  /// The region that requests are signed for. Empty: `AWS_REGION`, `AWS_DEFAULT_REGION`, then what
  /// the store says.
  std::string region;

  /// Whether the bucket stands in the path (`https://host/bucket/key`) or in the host name
  /// (`https://bucket.host/key`). Unset: in the host name for AWS where the bucket's name allows
  /// it, in the path everywhere else.
  std::optional<bool> path_style;

  /// Sends no credentials: for public buckets. Environment: `AWS_SKIP_SIGNATURE`,
  /// `AWS_NO_SIGN_REQUEST`.
  bool anonymous = false;

  /// Keys to sign with, instead of those that the environment holds.
  std::optional<aws_credentials> credentials;

  /// The name of the AWS profile to use. Empty: `AWS_PROFILE`, then `default`.
  std::string profile;

  /// Pays for the requests to a bucket whose owner does not (S3's and GCS's requester pays).
  bool requester_pays = false;

  /// A bearer token to use instead of those that the environment holds: GCS, Azure, the Hub. A
  /// secret.
  std::string token;

  /// The storage account of an `az://` location. Empty: that of `endpoint`,
  /// `AZURE_STORAGE_CONNECTION_STRING`, `AZURE_STORAGE_ACCOUNT_NAME`, `AZURE_STORAGE_ACCOUNT`.
  std::string account;

  /// A PEM file of the certificate authorities to trust, instead of the system's. Empty:
  /// `AWS_CA_BUNDLE` (S3), `SSL_CERT_FILE`, `SSL_CERT_DIR`, the system's.
  std::string ca_file;

  /// PEM files of our own certificate and its key, for servers that ask for one.
  std::string certificate_file;
  std::string key_file;

  /// False takes any certificate, with a warning in the log: whoever sits in between may then send
  /// other weights. For tests alone.
  bool verify_tls = true;

  /// Sent with every request to the store that the URI names, and to no host that it redirects to.
  /// May hold secrets.
  std::vector<std::pair<std::string, std::string>> headers;
};

/// Whether the options can be used at all: keys that are whole, header names and values that HTTP
/// allows, no header that headrace itself must set. Errors are `invalid_request` and name the
/// option, never its value.
[[nodiscard]] HEADRACE_API result<void> check(const storage_options& options);

}  // namespace headrace
