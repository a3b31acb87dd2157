#pragma once

#include <headrace/base/result.hpp>
#include <headrace/coro/task.hpp>
#include <headrace/io/endpoint.hpp>
#include <headrace/io/io_context.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace headrace {

/// Names to addresses on the loop, by c-ares: /etc/hosts, the system's name servers. No thread.
///
/// Threads: the loop's own. No `resolve` may be under way when it is destroyed.
class resolver {
 public:
  explicit resolver(io_context& context);
  ~resolver();
  resolver(const resolver&) = delete;
  resolver& operator=(const resolver&) = delete;

  /// All addresses of `host`, in the order of preference, at least one. A literal address, with or
  /// without brackets, costs no look-up. Errors: `connect_error` that names the host, `cancelled`.
  [[nodiscard]] task<result<std::vector<endpoint>>> resolve(std::string host, std::uint16_t port);

 private:
  class state;
  std::unique_ptr<state> state_;
};

}  // namespace headrace
