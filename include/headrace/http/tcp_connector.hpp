#pragma once

#include <headrace/base/export.hpp>
#include <headrace/coro/async_condition.hpp>
#include <headrace/coro/timer_service.hpp>
#include <headrace/http/http_connector.hpp>
#include <headrace/io/endpoint.hpp>
#include <headrace/io/io_context.hpp>
#include <headrace/io/resolver.hpp>
#include <headrace/io/tls_context.hpp>

#include <chrono>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace headrace {

/// Connects to `http` and `https` origins over TCP, through the route's proxy where it has one.
///
/// Every address of a name is tried, families in turn, each beginning 250 ms after the one before
/// or when that has failed (RFC 8305); each comes first in turn, so that all of them are used; one
/// that failed comes last for a while. `https` goes through a proxy in a tunnel (CONNECT), with TLS
/// to the proxy first where its URL says so; to a proxy for `http` origins a plain connection is
/// made, on which requests take the form that proxies want (`http_connection::forward_through`).
///
/// Errors name the proxy, without user and password, where it is what fails: `access_denied` where
/// it demands others. Every step has a limit, `timeout`.
///
/// Threads: the loop's own. No `connect` may be under way when it is destroyed.
class HEADRACE_API tcp_connector final : public http_connector {
 public:
  struct options {
    /// For the name, for each address, for the proxy's answer, for the TLS handshake.
    std::chrono::nanoseconds connect_limit = std::chrono::seconds(5);
    /// RFC 8305, 5: long enough for a far-away server, too short for anybody to notice.
    std::chrono::nanoseconds attempt_delay = std::chrono::milliseconds(250);
    std::chrono::nanoseconds avoid_for = std::chrono::seconds(60);
  };

  /// `context` and `names` must outlive it.
  tcp_connector(io_context& context, name_service& names, options limits);
  tcp_connector(io_context& context, name_service& names)
      : tcp_connector(context, names, options{}) {}

  [[nodiscard]] task<result<std::unique_ptr<byte_stream>>> connect(http_route route) override;

  void avoid(std::string_view peer) override;

 private:
  using connected = result<std::unique_ptr<byte_stream>>;

  [[nodiscard]] task<connected> reach(http_origin at, std::string described);
  [[nodiscard]] task<connected> make_secure(std::unique_ptr<byte_stream> transport,
                                            tls_options wanted, std::string host);

  struct avoided {
    std::string peer;
    steady_time until;
  };

  [[nodiscard]] task<result<std::shared_ptr<tls_context>>> tls_for(tls_options wanted);
  [[nodiscard]] task<result<std::shared_ptr<tls_context>>> make_tls(tls_options wanted);
  [[nodiscard]] std::vector<endpoint> in_order(std::vector<endpoint> addresses);

  io_context& context_;
  name_service& names_;
  const options limits_;
  std::vector<avoided> avoided_;  ///< Oldest first. Few: scanned.
  std::size_t turn_ = 0;
  std::map<tls_options, std::shared_ptr<tls_context>> tls_;  ///< Null: being made.
  std::mutex mutex_;  // the condition wants one; the loop's thread alone takes it
  async_condition tls_made_;
};

}  // namespace headrace
