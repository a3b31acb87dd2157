#pragma once

#include <headrace/base/clock.hpp>
#include <headrace/base/export.hpp>

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

namespace headrace {

/// What one host may be asked again: keeps a storm of failures from multiplying requests.
///
/// Every retry takes tokens and every success returns one. An empty bucket lets one probe through
/// every `probe_interval`, so that a host that has recovered is noticed. Threads: any.
class HEADRACE_API token_bucket {
 public:
  static constexpr unsigned capacity = 500;
  static constexpr std::chrono::seconds probe_interval{15};

  struct grant {
    bool granted = false;
    std::chrono::nanoseconds until_probe{
        0};  ///< Where it was refused: how long until the next probe is permitted.
    std::uint64_t successes =
        0;  ///< Of this host so far: whether something got through since an earlier refusal.
  };

  /// Takes `cost` tokens. Where there are fewer: granted as a probe, once every `probe_interval`,
  /// without taking any.
  [[nodiscard]] grant take(unsigned cost, steady_time now);

  /// Returns one token, up to the capacity.
  void success();

  [[nodiscard]] unsigned tokens() const;

 private:
  mutable std::mutex mutex_;
  unsigned tokens_ = capacity;
  std::uint64_t successes_ = 0;
  steady_time next_probe_ = steady_time::min();
};

/// The buckets of a runtime, one for each host, made at first use. Threads: any.
class HEADRACE_API token_buckets {
 public:
  /// The bucket of `host` (with its port: what the connection pool calls an origin). Never null.
  [[nodiscard]] std::shared_ptr<token_bucket> of(std::string_view host);

 private:
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<token_bucket>, std::less<>> buckets_;
};

}  // namespace headrace
