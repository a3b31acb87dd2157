#include <headrace/coro/channel.hpp>

#include "thread_executor.hpp"

#include <headrace/coro/async_scope.hpp>
#include <headrace/coro/sync_wait.hpp>
#include <headrace/coro/with.hpp>

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

using namespace headrace;
using namespace std::chrono_literals;

namespace {

task<> send_all(channel<int>* to, int first, int count, std::atomic<int>* sent) {
  for (int value = first; value < first + count; ++value) {
    const bool taken = co_await to->send(value);
    if (!taken) co_return;
    ++*sent;
  }
}

task<> receive_all(channel<int>* from, std::atomic<std::int64_t>* total,
                   std::atomic<int>* received) {
  for (;;) {
    const auto value = co_await from->receive();
    if (!value) co_return;
    *total += *value;
    ++*received;
  }
}

task<> wait_in_send(channel<int>* to, std::atomic<int>* refused) {
  const bool sent = co_await to->send(1);
  if (!sent) ++*refused;
}

task<> wait_in_receive(channel<int>* from, std::atomic<int>* empty) {
  const auto value = co_await from->receive();
  if (!value) ++*empty;
}

task<> check_order(channel<int>* between) {
  for (int value = 0; value < 3; ++value) {
    const bool sent = co_await between->send(value);
    CHECK(sent);
  }
  int fourth = 3;
  CHECK(!between->try_send(fourth));
  for (int value = 0; value < 3; ++value) {
    const auto received = co_await between->receive();
    CHECK(received == value);
  }
  CHECK(!between->try_receive());
}

task<> drain_after_close(channel<int>* between) {
  const bool first = co_await between->send(1);
  const bool second = co_await between->send(2);
  CHECK(first);
  CHECK(second);
  between->close();
  between->close();
  const bool late = co_await between->send(3);
  CHECK(!late);
  int value = 3;
  CHECK(!between->try_send(value));
  const auto one = co_await between->receive();
  CHECK(one == 1);
  CHECK(between->try_receive() == 2);
  const auto none = co_await between->receive();
  CHECK(!none);
}

task<> join(async_scope* scope) { co_await scope->join(); }

task<std::unique_ptr<int>> pass_owned(channel<std::unique_ptr<int>>* between) {
  const bool sent = co_await between->send(std::make_unique<int>(8));
  CHECK(sent);
  auto received = co_await between->receive();
  co_return std::move(*received);
}

task<> bounded_producer(channel<int>* to, std::atomic<int>* ahead, std::atomic<int>* most) {
  for (int value = 0; value < 2000; ++value) {
    const bool sent = co_await to->send(value);
    CHECK(sent);
    const int now = ++*ahead;
    int seen = *most;
    while (now > seen && !most->compare_exchange_weak(seen, now)) {
    }
  }
  to->close();
}

task<> bounded_consumer(channel<int>* from, std::atomic<int>* ahead) {
  for (int expected = 0;; ++expected) {
    const auto value = co_await from->receive();
    if (!value) {
      CHECK(expected == 2000);
      co_return;
    }
    CHECK(*value == expected);
    --*ahead;
  }
}

}  // namespace

TEST_SUITE("unit") {
  TEST_CASE("a channel keeps the order and refuses what does not fit") {
    channel<int> between(3);
    sync_wait(check_order(&between));
  }

  TEST_CASE("a closed channel gives what is left, then nothing") {
    channel<int> between(4);
    sync_wait(drain_after_close(&between));
  }

  TEST_CASE("a channel passes values that only move, and leaves alone what it refuses") {
    channel<std::unique_ptr<int>> between(1);
    CHECK(*sync_wait(pass_owned(&between)) == 8);
    between.close();
    auto kept = std::make_unique<int>(1);
    CHECK(!between.try_send(kept));
    CHECK(kept != nullptr);
  }

  TEST_CASE("closing wakes every sender and every receiver that waits") {
    test::thread_executor other;
    for (int round = 0; round < 50; ++round) {
      channel<int> full(1);
      channel<int> empty(1);
      int value = 0;
      REQUIRE(full.try_send(value));
      std::atomic<int> ended{0};
      async_scope scope;
      for (int at = 0; at < 3; ++at) {
        scope.spawn(other.get(), wait_in_send(&full, &ended));
        scope.spawn(other.get(), wait_in_receive(&empty, &ended));
      }
      full.close();
      empty.close();
      sync_wait(join(&scope));
      CHECK(ended == 6);
    }
  }

  TEST_CASE("a stop ends a wait in send and in receive") {
    test::thread_executor other;
    for (int round = 0; round < 50; ++round) {
      channel<int> full(1);
      channel<int> empty(1);
      int value = 0;
      REQUIRE(full.try_send(value));
      std::atomic<int> ended{0};
      async_scope scope;
      for (int at = 0; at < 3; ++at) {
        scope.spawn(other.get(), wait_in_send(&full, &ended));
        scope.spawn(other.get(), wait_in_receive(&empty, &ended));
      }
      scope.request_stop();
      sync_wait(join(&scope));
      CHECK(ended == 6);
    }
  }

  TEST_CASE("a sender is never further ahead than the capacity") {
    test::thread_executor first;
    test::thread_executor second;
    channel<int> between(4);
    std::atomic<int> ahead{0};
    std::atomic<int> most{0};
    async_scope scope;
    scope.spawn(first.get(), bounded_producer(&between, &ahead, &most));
    scope.spawn(second.get(), bounded_consumer(&between, &ahead));
    sync_wait(join(&scope));
    // One may be sent and not yet counted, another received and not yet subtracted.
    CHECK(most <= 6);
  }

  TEST_CASE("many senders and receivers on several threads lose nothing") {
    test::thread_executor first;
    test::thread_executor second;
    test::thread_executor third;
    for (const std::size_t capacity : {1, 3, 64}) {
      CAPTURE(capacity);
      channel<int> between(capacity);
      std::atomic<int> sent{0};
      std::atomic<int> received{0};
      std::atomic<std::int64_t> total{0};
      async_scope senders;
      async_scope receivers;
      for (int at = 0; at < 6; ++at) {
        receivers.spawn(at % 2 == 0 ? first.get() : third.get(),
                        receive_all(&between, &total, &received));
      }
      for (int at = 0; at < 8; ++at) {
        senders.spawn(at % 2 == 0 ? first.get() : second.get(),
                      send_all(&between, at * 1000, 1000, &sent));
      }
      std::thread plain([&] {
        for (int value = 8000; value < 9000; ++value) {
          while (!between.try_send(value)) std::this_thread::yield();
          ++sent;
        }
      });
      plain.join();
      sync_wait(join(&senders));
      between.close();
      sync_wait(join(&receivers));
      CHECK(sent == 9000);
      CHECK(received == 9000);
      CHECK(total == std::int64_t{8999} * 9000 / 2);
    }
  }

  TEST_CASE("stops, sends and receives race and every value is received or left") {
    test::thread_executor first;
    test::thread_executor second;
    for (int round = 0; round < 100; ++round) {
      channel<int> between(2);
      std::atomic<int> sent{0};
      std::atomic<int> received{0};
      std::atomic<std::int64_t> total{0};
      async_scope scope;
      for (int at = 0; at < 3; ++at) {
        scope.spawn(first.get(), send_all(&between, 0, 100, &sent));
        scope.spawn(second.get(), receive_all(&between, &total, &received));
      }
      std::thread stopper([&scope] { scope.request_stop(); });
      std::thread closer([&between] { between.close(); });
      stopper.join();
      closer.join();
      sync_wait(join(&scope));
      int left = 0;
      while (between.try_receive()) ++left;
      CHECK(sent == received + left);
    }
  }
}
