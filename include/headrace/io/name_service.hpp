#pragma once

#include <headrace/base/export.hpp>
#include <headrace/base/result.hpp>
#include <headrace/coro/task.hpp>
#include <headrace/io/endpoint.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace headrace {

/// Names to addresses. `resolver` is the system's; another one may say what a name means.
///
/// Threads: the loop's own.
class HEADRACE_API name_service {
 public:
  virtual ~name_service() = default;

  /// All addresses of `host`, in the order of preference, at least one. A literal address, with or
  /// without brackets, is its own. Errors: `connect_error` that names the host, `cancelled`.
  [[nodiscard]] virtual task<result<std::vector<endpoint>>> resolve(std::string host,
                                                                    std::uint16_t port) = 0;

  /// None of the addresses of `host` was of use: the next `resolve` answers from no memory.
  virtual void forget(std::string_view host) = 0;
};

}  // namespace headrace
