#include "storage/http_attempts.hpp"

#include "storage/http_date.hpp"

#include <headrace/base/log.hpp>
#include <headrace/base/sizes.hpp>
#include <headrace/coro/with.hpp>

#include <algorithm>

namespace headrace {
namespace {

/// How much of a refusal's body is read: enough for every store's error document.
constexpr std::size_t refusal_limit = 64_KiB;

/// Redirects of one exchange before it is a loop.
constexpr unsigned hop_limit = 5;

/// Whether it was worth waiting: false where a stop ended the pause.
task<bool> pause(std::chrono::nanoseconds duration) {
  try {
    co_await sleep_for(duration);
  } catch (const error&) {
    co_return false;
  }
  co_return true;
}

std::string in_milliseconds(std::chrono::nanoseconds duration) {
  return std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(duration).count()) +
         " ms";
}

attempt_failure stalled(const stall_watch& watch, const transfer_limits& limits,
                        const error& reason) {
  if (!watch.connected()) {
    return {failure_class::connect_timeout,
            error(errc::timeout,
                  "no connection within " + in_milliseconds(limits.connect_limit) + ": " +
                      reason.reason(),
                  reason.context())};
  }
  return {failure_class::stalled,
          error(errc::timeout,
                "less than " + std::to_string(limits.stall_rate) + " bytes a second for " +
                    in_milliseconds(limits.stall_limit),
                reason.context())};
}

task<attempt_result> attempt_watched(storage_loop& loop, const transfer& terms,
                                     http_exchange& wanted, bool fresh) {
  environment given = co_await current_environment();
  const std::stop_token outer = given.stop;
  std::stop_source either;
  const std::stop_callback inherited(outer, detail::request_stop{&either});
  stall_watch watch(loop.context, terms.limits, either);
  given.stop = either.get_token();
  auto attempted = co_await wanted.attempt(watch, fresh).under(std::move(given));
  if (!attempted && watch.fired() && !outer.stop_requested()) {
    co_return failure{stalled(watch, terms.limits, attempted.error().reason)};
  }
  co_return attempted;
}

failure_class classify_connect(const error& failed) {
  if (failed.kind() == errc::timeout) return failure_class::connect_timeout;
  if (failed.kind() != errc::connect_error) return failure_class::fatal;
  // A proxy's refusal: what it cannot reach now it may reach later, what it must not it never will.
  const int status = failed.context().status;
  if (status != 0 && classify_answer(status, "") == failure_class::fatal)
    return failure_class::fatal;
  return failure_class::connect_failed;
}

failure_class classify_send(const error& failed, const http_connection& connection) {
  // The kernel's own timeout: a peer that has vanished.
  if (failed.kind() == errc::timeout) return failure_class::connection_lost;
  if (failed.kind() != errc::connect_error) return failure_class::fatal;
  return !connection.fresh() && !connection.answer_started() ? failure_class::stale_connection
                                                             : failure_class::connection_lost;
}

}  // namespace

failure_class classify_body(errc kind) noexcept {
  const bool cut = kind == errc::truncated || kind == errc::connect_error || kind == errc::timeout;
  return cut ? failure_class::body_cut : failure_class::fatal;
}

stall_watch::stall_watch(io_context& context, const transfer_limits& limits,
                         std::stop_source& attempt)
    : timer_item(&fire), context_(context), limits_(limits), attempt_(attempt) {}

void stall_watch::watch(const http_connection& connection) {
  connected_ = true;
  connection_ = &connection;
  seen_ = connection.bytes_received();
  restart(limits_.stall_limit);
}

void stall_watch::release() noexcept {
  connection_ = nullptr;
  context_.cancel_timer(*this);
}

void stall_watch::fire(timer_item& item) noexcept {
  auto& self = static_cast<stall_watch&>(item);
  if (self.connection_ != nullptr) {
    const auto seconds = std::chrono::duration<double>(self.limits_.stall_limit).count();
    const auto least =
        static_cast<std::uint64_t>(static_cast<double>(self.limits_.stall_rate) * seconds);
    const auto now = self.connection_->bytes_received();
    if (now - self.seen_ >= std::max<std::uint64_t>(least, 1)) {
      self.seen_ = now;
      self.restart(self.limits_.stall_limit);
      return;
    }
  }
  self.fired_ = true;
  self.attempt_.request_stop();
}

void stall_watch::restart(std::chrono::nanoseconds limit) {
  context_.cancel_timer(*this);
  context_.start_timer(*this, context_.now() + limit);
}

task<result<void>> attempt_until_done(storage_loop& loop, const transfer& terms,
                                      retry_state& retries, http_exchange& wanted,
                                      error_context where) {
  const environment given = co_await current_environment();
  bool fresh = false;
  unsigned hops = 0;
  for (;;) {
    ++where.attempt;
    auto attempted = co_await attempt_watched(loop, terms, wanted, fresh);
    if (attempted) {
      if (wanted.more()) continue;  // fewer bytes than asked for, but the right ones
      retries.completed();
      co_return result<void>();
    }
    const attempt_failure& failed = attempted.error();
    if (given.stop.stop_requested() || failed.reason.kind() == errc::cancelled) {
      co_return failure{error(errc::cancelled, "stopped", where)};
    }
    if (failed.at_once) {
      if (++hops > hop_limit) {
        co_return failure{error(errc::protocol_error,
                                "redirected more than " + std::to_string(hop_limit) + " times",
                                where)};
      }
      continue;
    }
    fresh = failed.what == failure_class::stale_connection;
    auto decision = retries.next(failed.what, failed.retry_after, loop.context.now());
    while (decision.what == retry_decision::action::wait) {
      const bool waited = co_await pause(decision.pause);
      if (!waited) co_return failure{error(errc::cancelled, "stopped", where)};
      decision = retries.admit(loop.context.now());
    }
    const error last = failed.reason.with(where);
    if (decision.what == retry_decision::action::give_up) {
      if (!decision.kind || *decision.kind == last.kind()) co_return failure{last};
      co_return failure{error(*decision.kind, last.reason(), last.context())};
    }
    terms.statistics->retries.fetch_add(1, std::memory_order_relaxed);
    if (log_enabled(log_level::info))
      log(log_level::info, "trying again: " + std::string(last.what()));
  }
}

task<result<http_answer, attempt_failure>> ask(storage_loop& loop, const transfer& terms,
                                               retry_state& retries, stall_watch& watch,
                                               addressed_request asked, bool fresh) {
  retries.use(loop.buckets.of(asked.route.origin.to_string()));
  watch.connect();
  auto acquiring =
      fresh ? loop.connections.acquire_new(asked.route) : loop.connections.acquire(asked.route);
  auto lease = co_await std::move(acquiring);
  if (!lease) co_return failure{attempt_failure{classify_connect(lease.error()), lease.error()}};
  http_connection& connection = **lease;
  watch.watch(connection);
  terms.statistics->count_request(loop.context.now());
  auto head = co_await connection.send(std::move(asked.request));
  if (!head) {
    attempt_failure failed{classify_send(head.error(), connection), head.error()};
    watch.release();
    if (watch.fired()) lease->discard_and_avoid();
    co_return failure{std::move(failed)};
  }
  co_return http_answer{std::move(*lease), std::move(*head), std::move(asked.basis)};
}

task<attempt_failure> refusal_of(http_object_store& store, http_answer& answer, bool pinned) {
  auto body = co_await answer.lease->read_text(refusal_limit);
  const store_refusal refusal = store.refused_with(
      answer.basis.get(), answer.head, body ? std::string_view(*body) : std::string_view(), pinned);
  error_context context = answer.context();
  context.server_code = refusal.code;
  context.request_id = refusal.request_id;
  std::string message = refusal.message.empty() ? "the server refuses" : refusal.message;
  if (refusal.kind == errc::object_changed)
    message = "the object changed while it was read: load it again";
  std::optional<std::chrono::nanoseconds> retry_after;
  if (const auto field = answer.head.field("Retry-After")) {
    retry_after =
        parse_retry_after(*field, std::chrono::floor<std::chrono::seconds>(real_clock().wall()));
  }
  co_return attempt_failure{refusal.what,
                            error(refusal.kind, std::move(message), std::move(context)),
                            retry_after, refusal.ask_again};
}

task<void> drain(http_answer& answer) {
  auto drained = co_await answer.lease->read_text(refusal_limit);
  static_cast<void>(drained);
}

}  // namespace headrace
