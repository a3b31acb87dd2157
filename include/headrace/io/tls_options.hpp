#pragma once

#include <compare>
#include <string>

namespace headrace {

/// Whom to trust, and who we are. What is left empty is the system's: OpenSSL's own folder, or the
/// bundle of the distribution where that folder is empty.
struct tls_options {
  std::string ca_file;       ///< PEM: trusted instead of the system's authorities.
  std::string ca_directory;  ///< Certificates by hash (`openssl rehash`), instead of the system's.
  std::string certificate_file;  ///< PEM: our own certificate and its chain, for servers that ask.
  std::string key_file;          ///< PEM: the key to it.
  bool verify = true;  ///< False takes any certificate, with a warning in the log: for tests alone.

  friend bool operator==(const tls_options&, const tls_options&) = default;
  friend auto operator<=>(const tls_options&, const tls_options&) = default;
};

}  // namespace headrace
