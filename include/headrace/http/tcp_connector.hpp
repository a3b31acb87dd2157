#pragma once

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
#include <vector>

namespace headrace {

/// Connects to `http` and `https` origins over TCP: every address of the name is tried, in turn for
/// each new connection, so that all of them are used; one that failed comes last for a while.
///
/// Threads: the loop's own. No `connect` may be under way when it is destroyed.
class tcp_connector final : public http_connector {
 public:
  struct options {
    std::chrono::nanoseconds connect_limit = std::chrono::seconds(5);  ///< For each address.
    std::chrono::nanoseconds avoid_for = std::chrono::seconds(60);
  };

  /// `context` and `names` must outlive it.
  tcp_connector(io_context& context, resolver& names, options limits);
  tcp_connector(io_context& context, resolver& names) : tcp_connector(context, names, options{}) {}

  [[nodiscard]] task<result<std::unique_ptr<byte_stream>>> connect(http_route route) override;

  void avoid(std::string_view peer) override;

 private:
  struct avoided {
    std::string peer;
    steady_time until;
  };

  [[nodiscard]] task<result<std::shared_ptr<tls_context>>> tls_for(tls_options wanted);
  [[nodiscard]] task<result<std::shared_ptr<tls_context>>> make_tls(tls_options wanted);
  [[nodiscard]] std::vector<endpoint> in_order(std::vector<endpoint> addresses);

  io_context& context_;
  resolver& names_;
  const options limits_;
  std::vector<avoided> avoided_;  ///< Few: scanned.
  std::size_t turn_ = 0;
  std::map<tls_options, std::shared_ptr<tls_context>> tls_;  ///< Null: being made.
  std::mutex mutex_;  // the condition wants one; the loop's thread alone takes it
  async_condition tls_made_;
};

}  // namespace headrace
