#pragma once

#include <openssl/ssl.h>

#include <cstddef>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <string>

namespace headrace::detail {

struct session_free {
  void operator()(SSL_SESSION* session) const noexcept { SSL_SESSION_free(session); }
};
using session_pointer = std::unique_ptr<SSL_SESSION, session_free>;

/// Sessions that servers would resume, by host: a handshake without certificates, and one round
/// trip less in TLS 1.2. Bounded in hosts, in sessions of a host and in the size of one. Threads:
/// any.
class tls_sessions {
 public:
  /// As many as connections are usually opened at once to one host.
  static constexpr std::size_t sessions_of_a_host = 8;
  static constexpr std::size_t most_hosts = 64;
  static constexpr std::size_t largest_ticket = 16 * 1024;

  /// Keeps `session`; the oldest give way.
  void put(const std::string& host, session_pointer session);

  /// The newest session that is still good, or null. Those of TLS 1.3 are given away once: a server
  /// takes each once, and using one twice would show that both are the same client.
  [[nodiscard]] session_pointer take(const std::string& host);

 private:
  struct of_a_host {
    std::string host;
    std::deque<session_pointer> sessions;  ///< Newest last.
  };

  std::mutex mutex_;
  std::list<of_a_host> hosts_;  ///< Used last comes first.
};

}  // namespace headrace::detail
