#pragma once

#include <headrace/base/clock.hpp>
#include <headrace/http/http_pool.hpp>
#include <headrace/io/io_context.hpp>
#include <headrace/storage/token_bucket.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>

namespace headrace {

/// How long to be patient, and how often to try again.
struct transfer_limits {
  std::chrono::nanoseconds connect_limit = std::chrono::seconds(5);  ///< Until a connection stands.
  std::chrono::nanoseconds stall_limit =
      std::chrono::seconds(20);     ///< Below `stall_rate` for this long: aborted and resumed.
  std::uint64_t stall_rate = 1024;  ///< Bytes a second.
  unsigned retries = 5;             ///< Of one range, without progress.
  std::chrono::milliseconds shortest_pause{100};  ///< Before a retry; grows from there.
  std::optional<steady_time> deadline;            ///< No retry begins after it.
};

/// What transfers have cost so far. Written by every loop, read by anybody: relaxed counters, each
/// right for itself.
struct transfer_statistics {
  std::atomic<std::uint64_t> requests{0};  ///< HTTP requests sent; for local files the reads.
  std::atomic<std::uint64_t> retries{0};
  std::atomic<std::uint64_t> bytes{0};         ///< Of bodies, as received.
  std::atomic<std::int64_t> first_request{0};  ///< Steady clock, nanoseconds; 0: none yet.

  void count_request(steady_time now) noexcept {
    requests.fetch_add(1, std::memory_order_relaxed);
    if (first_request.load(std::memory_order_relaxed) != 0) return;
    std::int64_t none = 0;
    first_request.compare_exchange_strong(none, now.time_since_epoch().count(),
                                          std::memory_order_relaxed);
  }
};

/// On whose behalf bytes move.
struct transfer {
  transfer_limits limits;
  bool direct_io = false;  ///< Local files past the page cache, where their file system can.
  std::shared_ptr<transfer_statistics> statistics = std::make_shared<transfer_statistics>();
};

/// What a store needs of the loop that a request runs on. Threads: that loop's own.
struct storage_loop {
  io_context& context;
  http_pool& connections;
  token_buckets& buckets;  ///< Shared by all loops of a runtime.
  random_source& random;
};

}  // namespace headrace
