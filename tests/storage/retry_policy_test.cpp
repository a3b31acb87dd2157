#include <headrace/storage/retry_policy.hpp>

#include <doctest/doctest.h>

#include <array>
#include <chrono>
#include <memory>
#include <optional>
#include <vector>

using namespace std::chrono_literals;
using headrace::classify_answer;
using headrace::errc;
using headrace::failure_class;
using headrace::kind_of_answer;
using headrace::retry_decision;
using headrace::retry_policy;
using headrace::retry_state;
using headrace::steady_time;
using headrace::token_bucket;
using action = retry_decision::action;

namespace {

class fixed_random final : public headrace::random_source {
 public:
  explicit fixed_random(double value) : value_(value) {}
  double uniform() noexcept override { return value_; }

 private:
  double value_;
};

struct fixture {
  explicit fixture(std::optional<steady_time> deadline = std::nullopt, double chance = 0.5)
      : random(chance), state(retry_policy{}, random, bucket, deadline) {}

  // One failure and its whole wait; false where the state gives up.
  bool retries(failure_class failed,
               std::optional<std::chrono::nanoseconds> retry_after = std::nullopt) {
    last = state.next(failed, retry_after, now);
    while (last.what == action::wait) {
      REQUIRE(last.pause >= 0ns);
      waited += last.pause;
      now += last.pause;
      last = state.admit(now);
    }
    return last.what == action::go;
  }

  std::shared_ptr<token_bucket> bucket = std::make_shared<token_bucket>();
  fixed_random random;
  retry_state state;
  steady_time now{1h};
  retry_decision last;
  std::chrono::nanoseconds waited{0};
};

}  // namespace

TEST_SUITE("unit") {
  TEST_CASE("answers are retried as documented, and no others") {
    for (const int status : {500, 502, 503, 504})
      CHECK(classify_answer(status, "") == failure_class::server_error);
    CHECK(classify_answer(408, "") == failure_class::request_timeout);
    CHECK(classify_answer(429, "") == failure_class::throttled);
    for (const int status :
         {400, 401, 403, 404, 405, 407, 409, 410, 411, 412, 416, 501, 505, 301, 304, 200, 206}) {
      CAPTURE(status);
      CHECK(classify_answer(status, "") == failure_class::fatal);
    }
    CHECK(classify_answer(503, "SlowDown") == failure_class::server_error);
    CHECK(classify_answer(400, "RequestTimeout") == failure_class::request_timeout);
    CHECK(classify_answer(500, "InternalError") == failure_class::server_error);
    CHECK(classify_answer(403, "RequestTimeTooSkewed") == failure_class::clock_skew);
    for (const auto* const code : {"ExpiredToken", "ExpiredTokenException", "InvalidToken"})
      CHECK(classify_answer(400, code) == failure_class::expired_credentials);
    CHECK(classify_answer(403, "SignatureDoesNotMatch") == failure_class::fatal);
    CHECK(classify_answer(412, "PreconditionFailed") == failure_class::fatal);
    CHECK(classify_answer(200, "SlowDown") == failure_class::fatal);
  }

  TEST_CASE("an answer's kind depends on whether the object was pinned") {
    CHECK(kind_of_answer(404, "NoSuchKey", false) == errc::not_found);
    CHECK(kind_of_answer(404, "NoSuchKey", true) == errc::object_changed);
    CHECK(kind_of_answer(416, "InvalidRange", true) == errc::object_changed);
    CHECK(kind_of_answer(416, "InvalidRange", false) == errc::invalid_request);
    CHECK(kind_of_answer(412, "", false) == errc::object_changed);
    CHECK(kind_of_answer(401, "", false) == errc::access_denied);
    CHECK(kind_of_answer(403, "AccessDenied", true) == errc::access_denied);
    CHECK(kind_of_answer(400, "ExpiredToken", false) == errc::access_denied);
    CHECK(kind_of_answer(400, "ExpiredTokenException", false) == errc::access_denied);
    CHECK(kind_of_answer(400, "InvalidArgument", false) == errc::invalid_request);
    CHECK(kind_of_answer(429, "", false) == errc::throttled);
    CHECK(kind_of_answer(503, "SlowDown", false) == errc::unavailable);
    CHECK(kind_of_answer(501, "", false) == errc::unavailable);
    CHECK(kind_of_answer(204, "", false) == errc::protocol_error);
  }

  TEST_CASE("five retries without progress, then the kind of the last failure") {
    const std::array<std::pair<failure_class, errc>, 8> cases{
        {{failure_class::connect_failed, errc::connect_error},
         {failure_class::connect_timeout, errc::timeout},
         {failure_class::connection_lost, errc::connect_error},
         {failure_class::body_cut, errc::truncated},
         {failure_class::stalled, errc::timeout},
         {failure_class::request_timeout, errc::timeout},
         {failure_class::throttled, errc::throttled},
         {failure_class::server_error, errc::unavailable}}};
    for (const auto& [failed, kind] : cases) {
      CAPTURE(static_cast<int>(failed));
      fixture with;
      for (int i = 0; i < 5; ++i) CHECK(with.retries(failed));
      CHECK_FALSE(with.retries(failed));
      CHECK(with.last.kind == kind);
      CHECK(with.state.total_retries() == 5);
    }
  }

  TEST_CASE("what cannot get better is not tried again") {
    fixture with;
    CHECK_FALSE(with.retries(failure_class::fatal));
    CHECK_FALSE(with.last.kind.has_value());
    CHECK(with.waited == 0ns);
    CHECK(with.bucket->tokens() == token_bucket::capacity);
  }

  TEST_CASE("64 KiB more, over any number of attempts, or the whole range start the count afresh") {
    fixture with;
    for (int round = 0; round < 4; ++round) {
      for (int i = 0; i < 5; ++i) CHECK(with.retries(failure_class::body_cut));
      with.state.received(65'535);
      with.state.received(1);
    }
    for (int i = 0; i < 5; ++i) {
      with.state.received(13'000);
      CHECK(with.retries(failure_class::body_cut));
    }
    CHECK_FALSE(with.retries(failure_class::body_cut));

    fixture again;
    for (int i = 0; i < 5; ++i) CHECK(again.retries(failure_class::body_cut));
    again.state.completed();
    CHECK(again.retries(failure_class::body_cut));
  }

  TEST_CASE("a drip that never adds up to progress runs out of retries") {
    fixture with;
    int attempts = 0;
    do {
      with.state.received(10'000);
      ++attempts;
    } while (attempts < 100 && with.retries(failure_class::stalled));
    CHECK(attempts == 6);
  }

  TEST_CASE(
      "pauses are at least 100 ms, at most 15 s, grow at most threefold and start afresh with progress") {
    for (const double chance : {0.0, 0.3, 0.999999}) {
      CAPTURE(chance);
      fixture with(std::nullopt, chance);
      std::chrono::nanoseconds previous = 100ms;
      for (int i = 0; i < 5; ++i) {
        const auto decision = with.state.next(failure_class::server_error, std::nullopt, with.now);
        REQUIRE(decision.what == action::wait);
        CHECK(decision.pause >= 100ms);
        CHECK(decision.pause <= 15s);
        CHECK(decision.pause <= 3 * previous);
        previous = decision.pause;
        REQUIRE(with.state.admit(with.now).what == action::go);
      }
      with.state.received(1 << 20);
      CHECK(with.state.next(failure_class::server_error, std::nullopt, with.now).pause <= 300ms);
    }
    fixture longest(std::nullopt, 0.999999);
    std::chrono::nanoseconds last{0};
    for (int i = 0; i < 20; ++i)
      last = longest.state.next(failure_class::server_error, std::nullopt, longest.now).pause;
    CHECK(last == 15s);
  }

  TEST_CASE("the store's own wish for a pause is a lower bound") {
    fixture with;
    const auto decision = with.state.next(failure_class::throttled, 1s, with.now);
    CHECK(decision.what == action::wait);
    CHECK(decision.pause >= 1s);
    CHECK(decision.pause < 1200ms);
    CHECK(with.state.next(failure_class::server_error, 60s, with.now).what == action::wait);
    CHECK(with.state.next(failure_class::server_error, 0s, with.now).pause >= 100ms);
  }

  TEST_CASE("a wish beyond 60 seconds or beyond the deadline is throttled at once") {
    fixture with;
    auto decision = with.state.next(failure_class::throttled, 61s, with.now);
    CHECK(decision.what == action::give_up);
    CHECK(decision.kind == errc::throttled);
    decision = with.state.next(failure_class::server_error, 999999s, with.now);
    CHECK(decision.kind == errc::throttled);

    fixture hurried(steady_time{1h} + 10s);
    decision = hurried.state.next(failure_class::throttled, 11s, hurried.now);
    CHECK(decision.what == action::give_up);
    CHECK(decision.kind == errc::throttled);
    CHECK(hurried.state.next(failure_class::throttled, 5s, hurried.now).what == action::wait);
  }

  TEST_CASE("no pause reaches beyond the deadline, and behind it is a timeout") {
    fixture with(steady_time{1h} + 150ms, 0.99);
    const auto decision = with.state.next(failure_class::server_error, std::nullopt, with.now);
    CHECK(decision.what == action::wait);
    CHECK(decision.pause == 150ms);
    CHECK(with.state.admit(with.now + 150ms).kind == errc::timeout);
    CHECK(with.state.next(failure_class::server_error, std::nullopt, with.now + 1s).kind ==
          errc::timeout);
    CHECK(with.bucket->tokens() == token_bucket::capacity);
  }

  TEST_CASE("a reused connection that dies before its first byte costs nothing, once") {
    fixture with;
    CHECK(with.retries(failure_class::stale_connection));
    CHECK(with.waited == 0ns);
    CHECK(with.bucket->tokens() == token_bucket::capacity);
    for (int i = 0; i < 5; ++i) CHECK(with.retries(failure_class::stale_connection));
    CHECK(with.waited > 0ns);
    CHECK_FALSE(with.retries(failure_class::stale_connection));
    CHECK(with.last.kind == errc::connect_error);
  }

  TEST_CASE("a wrong clock, expired credentials and a wrong checksum get one more chance at once") {
    const std::array<std::pair<failure_class, errc>, 3> cases{
        {{failure_class::clock_skew, errc::access_denied},
         {failure_class::expired_credentials, errc::access_denied},
         {failure_class::checksum_mismatch, errc::protocol_error}}};
    for (const auto& [failed, kind] : cases) {
      CAPTURE(static_cast<int>(failed));
      fixture with;
      CHECK(with.retries(failed));
      CHECK(with.waited == 0ns);
      CHECK_FALSE(with.retries(failed));
      CHECK(with.last.kind == kind);
    }
    // Progress allows credentials to expire again, but a body to be wrong only once.
    fixture with;
    CHECK(with.retries(failure_class::expired_credentials));
    CHECK(with.retries(failure_class::checksum_mismatch));
    with.state.received(1 << 20);
    CHECK(with.retries(failure_class::expired_credentials));
    CHECK_FALSE(with.retries(failure_class::checksum_mismatch));
  }

  TEST_CASE("timeouts cost five tokens, other retries ten, and a success gives one back") {
    fixture with;
    CHECK(with.retries(failure_class::stalled));
    CHECK(with.bucket->tokens() == 495);
    CHECK(with.retries(failure_class::server_error));
    CHECK(with.bucket->tokens() == 485);
    with.state.completed();
    CHECK(with.bucket->tokens() == 486);
  }

  TEST_CASE("with an empty bucket a lone range probes each fifteen seconds, five times") {
    fixture with;
    while (with.bucket->tokens() >= 10) REQUIRE(with.bucket->take(10, with.now).granted);
    const auto start = with.now;
    int retries = 0;
    while (retries < 100 && with.retries(failure_class::server_error)) ++retries;
    CHECK(retries == 5);
    CHECK(with.last.kind == errc::unavailable);
    CHECK(with.now - start >= 60s);
    CHECK(with.now - start <= 80s);
  }

  TEST_CASE("ranges that share an empty bucket send one probe each fifteen seconds, and all end") {
    const auto bucket = std::make_shared<token_bucket>();
    fixed_random random(0.5);
    steady_time now{1h};
    while (bucket->tokens() >= 10) REQUIRE(bucket->take(10, now).granted);

    struct range {
      retry_state state;
      steady_time due;
      bool ended = false;
    };
    std::vector<range> ranges;
    for (int i = 0; i < 32; ++i) {
      ranges.push_back({retry_state({}, random, bucket), now});
      auto& added = ranges.back();
      added.due += added.state.next(failure_class::server_error, std::nullopt, now).pause;
    }
    const auto start = now;
    int probes = 0;
    std::size_t running = ranges.size();
    while (running != 0) {
      REQUIRE(now - start < 600s);
      now += 100ms;
      for (auto& one : ranges) {
        if (one.ended || one.due > now) continue;
        auto decision = one.state.admit(now);
        if (decision.what == action::go) {
          ++probes;
          decision = one.state.next(failure_class::server_error, std::nullopt, now);
        }
        one.due = now + decision.pause;
        if (decision.what == action::give_up) {
          CHECK(decision.kind == errc::unavailable);
          one.ended = true;
          --running;
        }
      }
    }
    CHECK(now - start <= 160s);
    CHECK(probes <= 2 + (now - start) / 15s);
  }

  TEST_CASE(
      "a range that waits for tokens waits on while others get through, and goes when ten tokens are there") {
    fixture with;
    while (with.bucket->tokens() >= 10) REQUIRE(with.bucket->take(10, with.now).granted);
    REQUIRE(with.bucket->take(10, with.now).granted);
    auto decision = with.state.next(failure_class::server_error, std::nullopt, with.now);
    with.now += decision.pause;
    for (int second = 0; second < 9; ++second) {
      decision = with.state.admit(with.now);
      REQUIRE(decision.what == action::wait);
      with.now += decision.pause;
      with.bucket->success();
    }
    REQUIRE(with.state.admit(with.now).what == action::wait);
    with.bucket->success();
    CHECK(with.state.admit(with.now).what == action::go);
  }

  TEST_CASE("after a redirect the new host's bucket counts") {
    fixture with;
    const auto other = std::make_shared<token_bucket>();
    with.state.use(other);
    CHECK(with.retries(failure_class::server_error));
    CHECK(with.bucket->tokens() == token_bucket::capacity);
    CHECK(other->tokens() == token_bucket::capacity - 10);
  }

  TEST_CASE("a policy without retries gives up at once") {
    fixture with;
    retry_state never({.retries = 0}, with.random, with.bucket);
    CHECK(never.next(failure_class::server_error, std::nullopt, with.now).kind ==
          errc::unavailable);
  }
}
