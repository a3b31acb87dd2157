#include <headrace/storage/retry_policy.hpp>

#include <headrace/base/assert.hpp>

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

namespace headrace {
namespace {

using std::chrono::nanoseconds;
using action = retry_decision::action;

// How often a retry that waits for tokens looks whether others have brought some.
constexpr std::chrono::seconds look_again{1};

unsigned cost_of(failure_class failed) noexcept {
  switch (failed) {
    case failure_class::connect_timeout:
    case failure_class::stalled:
    case failure_class::request_timeout:
      return 5;
    default:
      return 10;
  }
}

std::optional<errc> kind_after_all(failure_class failed) noexcept {
  switch (failed) {
    case failure_class::stale_connection:
    case failure_class::connect_failed:
    case failure_class::connection_lost:
      return errc::connect_error;
    case failure_class::connect_timeout:
    case failure_class::stalled:
    case failure_class::request_timeout:
      return errc::timeout;
    case failure_class::body_cut:
      return errc::truncated;
    case failure_class::throttled:
      return errc::throttled;
    case failure_class::server_error:
      return errc::unavailable;
    case failure_class::clock_skew:
    case failure_class::expired_credentials:
      return errc::access_denied;
    case failure_class::checksum_mismatch:
      return errc::protocol_error;
    case failure_class::fatal:
      break;
  }
  return std::nullopt;
}

retry_decision give_up(std::optional<errc> kind) noexcept {
  return {action::give_up, nanoseconds{0}, kind};
}

}  // namespace

failure_class classify_answer(int status, std::string_view server_code) noexcept {
  if (status < 400) return failure_class::fatal;
  if (server_code == "RequestTimeTooSkewed") return failure_class::clock_skew;
  for (const auto* const expired : {"ExpiredToken", "ExpiredTokenException", "InvalidToken"}) {
    if (server_code == expired) return failure_class::expired_credentials;
  }
  if (server_code == "RequestTimeout") return failure_class::request_timeout;
  if (server_code == "SlowDown" || server_code == "InternalError")
    return failure_class::server_error;
  switch (status) {
    case 408:
      return failure_class::request_timeout;
    case 429:
      return failure_class::throttled;
    case 500:
    case 502:
    case 503:
    case 504:
      return failure_class::server_error;
    default:
      return failure_class::fatal;
  }
}

errc kind_of_answer(int status, std::string_view server_code, bool pinned) noexcept {
  // S3 answers 400 to some keys that it does not accept, and to clocks that are wrong.
  constexpr std::array<std::string_view, 5> refusals{"ExpiredToken", "ExpiredTokenException",
                                                     "InvalidToken", "InvalidAccessKeyId",
                                                     "RequestTimeTooSkewed"};
  if (status >= 400 && std::find(refusals.begin(), refusals.end(), server_code) != refusals.end()) {
    return errc::access_denied;
  }
  switch (status) {
    case 401:
    case 403:
    case 407:
      return errc::access_denied;
    case 404:
    case 410:
      return pinned ? errc::object_changed : errc::not_found;
    case 408:
      return errc::timeout;
    case 412:
      return errc::object_changed;
    case 416:
      return pinned ? errc::object_changed : errc::invalid_request;
    case 429:
      return errc::throttled;
    default:
      break;
  }
  if (status >= 500 && status <= 599) return errc::unavailable;
  if (status >= 400 && status <= 499) return errc::invalid_request;
  return errc::protocol_error;
}

retry_state::retry_state(retry_policy policy, random_source& random,
                         std::shared_ptr<token_bucket> bucket, std::optional<steady_time> deadline)
    : policy_(policy),
      random_(&random),
      bucket_(std::move(bucket)),
      deadline_(deadline),
      last_pause_(policy.shortest_pause) {}

void retry_state::use(std::shared_ptr<token_bucket> bucket) noexcept {
  HEADRACE_ASSERT(bucket != nullptr);
  bucket_ = std::move(bucket);
  refused_since_.reset();
}

void retry_state::received(std::uint64_t bytes) noexcept {
  received_ += std::min(bytes, std::numeric_limits<std::uint64_t>::max() - received_);
  if (received_ >= policy_.progress) start_afresh();
}

void retry_state::completed() {
  start_afresh();
  if (bucket_ != nullptr) bucket_->success();
}

retry_decision retry_state::next(failure_class failed, std::optional<nanoseconds> retry_after,
                                 steady_time now) {
  failed_ = failed;
  refused_since_.reset();
  if (failed == failure_class::fatal) return give_up(std::nullopt);
  if (too_late(now)) return give_up(errc::timeout);
  switch (failed) {
    case failure_class::clock_skew:
      return once(skew_corrected_, failed);
    case failure_class::expired_credentials:
      return once(credentials_refreshed_, failed);
    case failure_class::checksum_mismatch:
      return once(fetched_again_, failed);
    case failure_class::stale_connection:
      if (!free_retry_used_) return once(free_retry_used_, failed);
      break;
    default:
      break;
  }

  if (retry_after) {
    if (*retry_after > policy_.longest_retry_after) return give_up(errc::throttled);
    if (deadline_ && *retry_after > *deadline_ - now) return give_up(errc::throttled);
  }
  if (retries_ >= policy_.retries) return give_up(kind_after_all(failed));

  auto pause = next_pause();
  if (retry_after) {
    // Not all at the same instant: every connection to the host was told the same.
    const auto spread =
        std::chrono::duration<double, std::nano>(policy_.shortest_pause) * random_->uniform();
    pause = std::max(pause, *retry_after + std::chrono::duration_cast<nanoseconds>(spread));
  }
  return wait(pause, now);
}

retry_decision retry_state::admit(steady_time now) {
  if (too_late(now)) return give_up(errc::timeout);
  if (bucket_ == nullptr) return go();  // no host has been asked yet: it failed before
  const auto grant = bucket_->take(cost_of(failed_), now);
  if (grant.granted) {
    refused_since_.reset();
    ++retries_;
    return go();
  }
  if (!refused_since_ || grant.successes != successes_seen_) {
    refused_since_ = now;
    successes_seen_ = grant.successes;
  }
  // Other ranges may take every probe. Without a limit of its own this one would wait for all of
  // theirs to fail.
  const auto probes_left = policy_.retries - retries_;
  if (now - *refused_since_ >= token_bucket::probe_interval * probes_left)
    return give_up(kind_after_all(failed_));
  return wait(std::min<nanoseconds>(grant.until_probe, look_again), now);
}

retry_decision retry_state::go() noexcept {
  ++total_retries_;
  return {action::go, nanoseconds{0}, std::nullopt};
}

retry_decision retry_state::once(bool& used, failure_class failed) noexcept {
  if (std::exchange(used, true)) return give_up(kind_after_all(failed));
  return go();
}

// Never beyond the deadline, so that it is noticed when it passes.
retry_decision retry_state::wait(nanoseconds pause, steady_time now) const noexcept {
  if (deadline_) pause = std::min<nanoseconds>(pause, *deadline_ - now);
  return {action::wait, pause, std::nullopt};
}

bool retry_state::too_late(steady_time now) const noexcept {
  return deadline_ && now >= *deadline_;
}

// Decorrelated jitter: from the shortest pause up to three times the last one.
nanoseconds retry_state::next_pause() noexcept {
  const std::chrono::duration<double, std::nano> shortest = policy_.shortest_pause;
  const auto most = std::max<std::chrono::duration<double, std::nano>>(shortest, 3 * last_pause_);
  const auto pause =
      std::chrono::duration_cast<nanoseconds>(shortest + (most - shortest) * random_->uniform());
  last_pause_ = std::min<nanoseconds>(pause, policy_.longest_pause);
  return last_pause_;
}

void retry_state::start_afresh() noexcept {
  retries_ = 0;
  received_ = 0;
  last_pause_ = policy_.shortest_pause;
  free_retry_used_ = false;
  credentials_refreshed_ = false;
}

}  // namespace headrace
