#include "io/tls_sessions.hpp"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <utility>

namespace headrace::detail {
namespace {

bool is_tls_1_3(const SSL_SESSION* session) noexcept {
  return SSL_SESSION_get_protocol_version(session) >= TLS1_3_VERSION;
}

bool is_good(const SSL_SESSION* session) noexcept {
  // OpenSSL stamps sessions by the same clock.
  const auto now = static_cast<long>(std::time(nullptr));
  const long made = SSL_SESSION_get_time(session);
  return SSL_SESSION_is_resumable(session) == 1 && now >= made &&
         now - made < SSL_SESSION_get_timeout(session);
}

}  // namespace

void tls_sessions::put(const std::string& host, session_pointer session) {
  const unsigned char* ticket = nullptr;
  std::size_t ticket_size = 0;
  SSL_SESSION_get0_ticket(session.get(), &ticket, &ticket_size);
  if (ticket_size > largest_ticket) return;

  const std::lock_guard lock(mutex_);
  const auto found = std::find_if(hosts_.begin(), hosts_.end(),
                                  [&host](const of_a_host& known) { return known.host == host; });
  if (found == hosts_.end()) {
    hosts_.push_front({host, {}});
    if (hosts_.size() > most_hosts) hosts_.pop_back();
  } else {
    hosts_.splice(hosts_.begin(), hosts_, found);
  }
  auto& kept = hosts_.front().sessions;
  kept.push_back(std::move(session));
  if (kept.size() > sessions_of_a_host) kept.pop_front();
}

session_pointer tls_sessions::take(const std::string& host) {
  const std::lock_guard lock(mutex_);
  const auto found = std::find_if(hosts_.begin(), hosts_.end(),
                                  [&host](const of_a_host& known) { return known.host == host; });
  if (found == hosts_.end()) return nullptr;
  auto& kept = found->sessions;
  while (!kept.empty() && !is_good(kept.back().get())) kept.pop_back();
  if (kept.empty()) {
    hosts_.erase(found);
    return nullptr;
  }
  if (!is_tls_1_3(kept.back().get())) {
    // A copy: OpenSSL marks a session that a connection of another thread may be using.
    return session_pointer(SSL_SESSION_dup(kept.back().get()));
  }
  auto taken = std::move(kept.back());
  kept.pop_back();
  return taken;
}

}  // namespace headrace::detail
