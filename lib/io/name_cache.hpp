#pragma once

#include <headrace/base/clock.hpp>
#include <headrace/io/endpoint.hpp>

#include <chrono>
#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace headrace::detail {

/// The addresses that names had a moment ago. Bounded: in names, and in how long they are believed,
/// whatever a name server says.
///
/// Threads: the loop's own.
class name_cache {
 public:
  static constexpr std::chrono::seconds shortest{1};
  static constexpr std::chrono::seconds longest{60};
  static constexpr std::size_t most_names = 256;

  /// What `name` was told to be, or null. The pointer is good until the next call of any member.
  [[nodiscard]] const std::vector<endpoint>* find(std::string_view name, steady_time now);

  /// `lifetime` is the name server's. Where there are too many names, the one that would go first
  /// goes now.
  void keep(std::string name, std::vector<endpoint> addresses, std::chrono::seconds lifetime,
            steady_time now);

  void forget(std::string_view name);

  [[nodiscard]] std::size_t size() const noexcept { return names_.size(); }

 private:
  struct entry {
    std::vector<endpoint> addresses;
    steady_time until;
  };

  std::map<std::string, entry, std::less<>> names_;
};

}  // namespace headrace::detail
