#pragma once

#include "storage/http_object_store.hpp"

#include <headrace/http/http_pool.hpp>
#include <headrace/storage/retry_policy.hpp>
#include <headrace/storage/transfer.hpp>

#include <chrono>
#include <optional>
#include <stop_token>

namespace headrace {

/// Why an attempt failed, and what that means for the next one.
struct attempt_failure {
  failure_class what;
  error reason;
  std::optional<std::chrono::nanoseconds> retry_after{};
  bool at_once = false;  ///< Not a failure of the host: a redirect, a region. Asked again without a
                         ///< pause, within the hop limit.
};

using attempt_result = result<void, attempt_failure>;

/// Ends an attempt that makes no progress: the connect limit first, from `connect` on, then the
/// stall limit. Threads: the loop's own.
class stall_watch final : public timer_item {
 public:
  /// `limits` and `attempt` must outlive it.
  stall_watch(io_context& context, const transfer_limits& limits, std::stop_source& attempt);
  ~stall_watch() { context_.cancel_timer(*this); }

  /// From now on a connection is expected. Not before: credentials may have to be fetched first.
  void connect() { restart(limits_.connect_limit); }

  /// From now on bytes are expected on `connection`, until `release`.
  void watch(const http_connection& connection);
  void release() noexcept;

  /// Whether it has ended the attempt, and in which phase.
  [[nodiscard]] bool fired() const noexcept { return fired_; }
  [[nodiscard]] bool connected() const noexcept { return connected_; }

 private:
  static void fire(timer_item& item) noexcept;
  void restart(std::chrono::nanoseconds limit);

  io_context& context_;
  const transfer_limits& limits_;
  std::stop_source& attempt_;
  const http_connection* connection_ = nullptr;
  std::uint64_t seen_ = 0;
  bool connected_ = false;
  bool fired_ = false;
};

/// Something that is asked for until it is there: a range, a listing.
class http_exchange {
 public:
  /// One attempt. `watch` ends it where it stalls; `fresh` demands a connection that nobody has
  /// used.
  [[nodiscard]] virtual task<attempt_result> attempt(stall_watch& watch, bool fresh) = 0;

  /// Whether an attempt that succeeded brought only a part.
  [[nodiscard]] virtual bool more() const noexcept = 0;

 protected:
  ~http_exchange() = default;
};

/// Attempts `wanted` until it is there, with the retries, pauses and limits of `terms`; the one
/// place that knows them. `where` completes the error. All references outlive the task.
[[nodiscard]] task<result<void>> attempt_until_done(storage_loop& loop, const transfer& terms,
                                                    retry_state& retries, http_exchange& wanted,
                                                    error_context where);

/// The head of an answer, and the connection that its body comes on.
struct http_answer {
  http_lease lease;
  http_response_head head;
  std::shared_ptr<const request_basis> basis{};  ///< Of the request.

  /// For errors about this answer.
  [[nodiscard]] error_context context() const {
    return {.peer = lease->peer(), .status = head.status()};
  }
};

/// Connects, sends `asked` and waits for the head of the answer: the part that all exchanges share.
[[nodiscard]] task<result<http_answer, attempt_failure>> ask(storage_loop& loop,
                                                             const transfer& terms,
                                                             retry_state& retries,
                                                             stall_watch& watch,
                                                             addressed_request asked, bool fresh);

/// What a failure in a body of this kind means: broken off, by the peer or since it has vanished,
/// or not to be tried again.
[[nodiscard]] failure_class classify_body(errc kind) noexcept;

/// The failure that a store's refusal is. Reads the body of `answer`.
[[nodiscard]] task<attempt_failure> refusal_of(http_object_store& store, http_answer& answer,
                                               bool pinned);

/// Reads what is left of a small body that nobody wants, so that the connection can be used again.
[[nodiscard]] task<void> drain(http_answer& answer);

}  // namespace headrace
