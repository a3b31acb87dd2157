#pragma once

#include <headrace/base/export.hpp>
#include <headrace/base/result.hpp>
#include <headrace/coro/task.hpp>
#include <headrace/io/endpoint.hpp>
#include <headrace/io/io_context.hpp>
#include <headrace/io/name_service.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace headrace {

/// Names to addresses on the loop, by c-ares: /etc/hosts, the system's name servers. No thread.
///
/// Answers are kept as long as the name servers say, for a second at least and a minute at most,
/// 256 names; failures are not. Those who want the same name at the same time share one query, and
/// a stop ends the wait of its own caller alone.
///
/// Threads: the loop's own. No `resolve` may be under way when it is destroyed.
///
///     resolver names(loop);
///     auto addresses = co_await names.resolve("example.com", 443);
class HEADRACE_API resolver final : public name_service {
 public:
  struct options {
    std::string servers;  ///< `address[:port]`, by commas; empty: the system's.
  };

  resolver(io_context& context, options given);
  explicit resolver(io_context& context) : resolver(context, options{}) {}
  ~resolver() override;
  resolver(const resolver&) = delete;
  resolver& operator=(const resolver&) = delete;

  /// At most 16 addresses of each family. A literal address costs no look-up. No limit on time but
  /// that of the name servers (14 s each): `with_stop`, `with_timeout`.
  [[nodiscard]] task<result<std::vector<endpoint>>> resolve(std::string host,
                                                            std::uint16_t port) override;

  void forget(std::string_view host) override;

 private:
  class state;
  std::unique_ptr<state> state_;
};

}  // namespace headrace
