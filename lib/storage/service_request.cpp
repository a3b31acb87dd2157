#include "storage/service_request.hpp"

#include "storage/http_attempts.hpp"

#include <utility>

namespace headrace {
namespace {

class service_exchange final : public http_exchange {
 public:
  service_exchange(storage_loop& loop, const transfer& terms, service_request wanted)
      : loop_(loop),
        terms_(terms),
        wanted_(std::move(wanted)),
        retries_({.retries = terms.limits.retries}, loop.random, nullptr) {}

  [[nodiscard]] retry_state& retries() noexcept { return retries_; }
  [[nodiscard]] service_answer& answer() noexcept { return answer_; }
  [[nodiscard]] bool more() const noexcept override { return false; }

  task<attempt_result> attempt(stall_watch& watch, bool fresh) override {
    auto answered = co_await ask(loop_, terms_, retries_, watch, wanted_.asked, fresh);
    if (!answered) co_return failure{answered.error()};
    auto outcome = co_await receive(*answered);
    watch.release();
    if (!outcome && watch.fired()) answered->lease.discard_and_avoid();
    co_return outcome;
  }

 private:
  task<attempt_result> receive(http_answer& answered) {
    auto body = co_await answered.lease->read_text(wanted_.limit);
    if (!body) co_return failure{attempt_failure{classify_body(body.error().kind()), body.error()}};
    const int status = answered.head.status();
    const failure_class what = classify_answer(status, "");
    if (status >= 400 && what != failure_class::fatal) {
      co_return failure{attempt_failure{
          what, error(kind_of_answer(status, "", false), "it refuses", answered.context())}};
    }
    answer_ = {std::move(answered.head), std::move(*body), answered.lease->peer()};
    co_return attempt_result();
  }

  storage_loop& loop_;
  const transfer& terms_;
  const service_request wanted_;
  retry_state retries_;
  service_answer answer_;
};

}  // namespace

task<result<service_answer>> ask_service(storage_loop& loop, service_request wanted) {
  transfer terms;
  terms.limits.connect_limit = wanted.connect_limit;
  terms.limits.stall_limit = wanted.answer_limit;
  terms.limits.retries = wanted.retries;
  const std::string about = wanted.about;
  service_exchange exchange(loop, terms, std::move(wanted));
  auto done = co_await attempt_until_done(loop, terms, exchange.retries(), exchange, {});
  if (!done) {
    const error& failed = done.error();
    co_return failure{error(failed.kind(), about + ": " + failed.reason(), failed.context())};
  }
  co_return std::move(exchange.answer());
}

}  // namespace headrace
