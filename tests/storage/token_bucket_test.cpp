#include <headrace/storage/token_bucket.hpp>

#include <doctest/doctest.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

using namespace std::chrono_literals;
using headrace::steady_time;
using headrace::token_bucket;
using headrace::token_buckets;

TEST_SUITE("unit") {
  TEST_CASE("a full bucket grants fifty retries, then one probe each fifteen seconds") {
    token_bucket bucket;
    const steady_time start{1h};
    for (int i = 0; i < 50; ++i) CHECK(bucket.take(10, start).granted);
    CHECK(bucket.tokens() == 0);
    CHECK(bucket.take(10, start).granted);  // the probe
    CHECK(bucket.tokens() == 0);
    auto refused = bucket.take(10, start + 1s);
    CHECK_FALSE(refused.granted);
    CHECK(refused.until_probe == 14s);
    CHECK_FALSE(bucket.take(5, start + 15s - 1ns).granted);
    CHECK(bucket.take(10, start + 15s).granted);
    CHECK_FALSE(bucket.take(10, start + 15s).granted);
    CHECK(bucket.take(10, start + 100s).granted);
  }

  TEST_CASE("a success returns one token, and never more than fit") {
    token_bucket bucket;
    bucket.success();
    CHECK(bucket.tokens() == token_bucket::capacity);
    const steady_time start{};
    CHECK(bucket.take(10, start).granted);
    bucket.success();
    CHECK(bucket.tokens() == token_bucket::capacity - 9);
  }

  TEST_CASE("tokens that successes brought are spent before the next probe is due") {
    token_bucket bucket;
    const steady_time start{};
    while (bucket.tokens() >= 10) REQUIRE(bucket.take(10, start).granted);
    CHECK(bucket.take(10, start).granted);
    const auto before = bucket.take(10, start).successes;
    for (int i = 0; i < 10; ++i) bucket.success();
    CHECK(bucket.take(10, start + 1s).granted);
    const auto refused = bucket.take(10, start + 1s);
    CHECK_FALSE(refused.granted);
    CHECK(refused.successes == before + 10);
  }

  TEST_CASE("a timeout costs less and may still be granted where a retry is not") {
    token_bucket bucket;
    const steady_time start{};
    for (int i = 0; i < 49; ++i) REQUIRE(bucket.take(10, start).granted);
    CHECK(bucket.take(5, start).granted);
    CHECK(bucket.tokens() == 5);
    CHECK(bucket.take(10, start).granted);  // the probe takes nothing
    CHECK(bucket.tokens() == 5);
    CHECK(bucket.take(5, start).granted);
    CHECK(bucket.tokens() == 0);
  }

  TEST_CASE("every host has a bucket of its own, and keeps it while it is used") {
    token_buckets buckets;
    const auto first = buckets.of("a:443");
    CHECK(buckets.of("a:443") == first);
    CHECK(buckets.of("b:443") != first);
    (void)first->take(10, {});
    for (int i = 0; i < 3000; ++i) (void)buckets.of("host" + std::to_string(i));
    CHECK(buckets.of("a:443") == first);
  }

  TEST_CASE("takes and successes of several threads add up") {
    token_bucket bucket;
    token_buckets buckets;
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&] {
        for (int k = 0; k < 10; ++k) {
          (void)bucket.take(10, steady_time{});
          (void)buckets.of("host" + std::to_string(k));
        }
        for (int k = 0; k < 50; ++k) bucket.success();
      });
    }
    for (auto& thread : threads) thread.join();
    CHECK(bucket.tokens() == 500 - 4 * 10 * 10 + 4 * 50);
  }
}
