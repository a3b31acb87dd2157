#pragma once

#include <headrace/base/clock.hpp>
#include <headrace/base/errc.hpp>
#include <headrace/base/export.hpp>
#include <headrace/storage/token_bucket.hpp>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

namespace headrace {

/// What went wrong with one attempt, as far as it matters for trying again.
enum class failure_class {
  stale_connection,  ///< A reused connection died before its answer's first byte: once, at once.
  connect_failed,    ///< No address could be resolved or connected to.
  connect_timeout,   ///< The connect limit passed.
  connection_lost,   ///< The connection broke, or ended, before the body began.
  body_cut,          ///< The connection broke, or ended, before the body's end.
  stalled,           ///< The stall limit passed.
  request_timeout,   ///< 408, or S3's `RequestTimeout`.
  throttled,         ///< 429.
  server_error,      ///< 500, 502, 503, 504, `SlowDown`, `InternalError`.
  clock_skew,  ///< `RequestTimeTooSkewed`: once, at once; the caller takes the offset from the
               ///< answer's `Date`.
  expired_credentials,  ///< `ExpiredToken`, `InvalidToken`: once, at once; the caller refreshes its
                        ///< credentials.
  checksum_mismatch,    ///< The body is not what the answer's own checksum says: once, at once.
  fatal,  ///< Everything else: other 4xx, 412, certificates, protocol errors. Never tried again.
};

/// What an HTTP status, and the store's own code where it sent one, mean for trying again.
[[nodiscard]] HEADRACE_API failure_class classify_answer(int status,
                                                         std::string_view server_code) noexcept;

/// The kind of error that an answer other than success stands for. `pinned`: whether the request
/// named a version, or an earlier answer fixed one; then 404 and 416 mean that the object changed.
[[nodiscard]] HEADRACE_API errc kind_of_answer(int status, std::string_view server_code,
                                               bool pinned) noexcept;

/// When to try again. The defaults are the ones that headrace documents.
struct retry_policy {
  unsigned retries = 5;  ///< Without progress in between.
  std::chrono::milliseconds shortest_pause{100};
  std::chrono::milliseconds longest_pause{15'000};
  /// A store that asks for more is `throttled`.
  std::chrono::milliseconds longest_retry_after{60'000};
  std::uint64_t progress = 64 * 1024;  ///< Bytes that count as progress.
};

/// What to do after a failed attempt.
struct retry_decision {
  enum class action {
    go,       ///< Try again now.
    wait,     ///< Wait `pause`, then ask `retry_state::admit`.
    give_up,  ///< Fail, with `kind` if there is one, with the failure's own kind otherwise.
  };

  action what = action::give_up;
  std::chrono::nanoseconds pause{0};
  std::optional<errc> kind;
};

/// The retries of one range: counts, pauses (decorrelated jitter), the store's own wishes, the
/// host's token bucket and the deadline. Decides and never waits: the caller has the timers.
///
///     auto decision = state.next(failure_class::body_cut, {}, clock.now());
///     while (decision.what == retry_decision::action::wait) {
///       co_await sleep(decision.pause);
///       decision = state.admit(clock.now());
///     }
///     if (decision.what == retry_decision::action::give_up) {
///       return failure{error(decision.kind.value_or(own_kind), …)};
///     }
///
/// Threads: one at a time.
class HEADRACE_API retry_state {
 public:
  /// `random` outlives the state. `bucket` is the host's, null as long as no host has been asked; a
  /// state that moves to another host (a redirect) says so with `use`.
  retry_state(retry_policy policy, random_source& random, std::shared_ptr<token_bucket> bucket,
              std::optional<steady_time> deadline = std::nullopt);

  void use(std::shared_ptr<token_bucket> bucket) noexcept;

  /// Bytes of the range have arrived. Enough of them, over any number of attempts, start the count
  /// afresh.
  void received(std::uint64_t bytes) noexcept;

  /// A request was answered in full: the count starts afresh, and the host gets a token back.
  void completed();

  /// An attempt failed. `retry_after` is the pause that the answer asked for.
  [[nodiscard]] retry_decision next(failure_class failed,
                                    std::optional<std::chrono::nanoseconds> retry_after,
                                    steady_time now);

  /// After the pause: takes the retry's tokens. Where the host's bucket is empty the answer is to
  /// wait again, until a token or the host's next probe is there; not longer than the probes that
  /// are left to this range would take, unless other requests to the host succeed in the meantime.
  [[nodiscard]] retry_decision admit(steady_time now);

  /// How often was tried again, all in all: for statistics.
  [[nodiscard]] unsigned total_retries() const noexcept { return total_retries_; }

 private:
  [[nodiscard]] retry_decision go() noexcept;
  [[nodiscard]] retry_decision once(bool& used, failure_class failed) noexcept;
  [[nodiscard]] retry_decision wait(std::chrono::nanoseconds pause, steady_time now) const noexcept;
  [[nodiscard]] bool too_late(steady_time now) const noexcept;
  [[nodiscard]] std::chrono::nanoseconds next_pause() noexcept;
  void start_afresh() noexcept;

  retry_policy policy_;
  random_source* random_;
  std::shared_ptr<token_bucket> bucket_;
  std::optional<steady_time> deadline_;

  unsigned retries_ = 0;  // since the last progress
  unsigned total_retries_ = 0;
  std::uint64_t received_ = 0;  // since the last progress
  std::chrono::nanoseconds last_pause_;
  bool free_retry_used_ = false;
  bool skew_corrected_ = false;
  bool credentials_refreshed_ = false;
  bool fetched_again_ = false;

  // Of the retry that waits for admission.
  failure_class failed_ = failure_class::fatal;
  std::optional<steady_time> refused_since_;
  std::uint64_t successes_seen_ = 0;
};

}  // namespace headrace
