#include "stream/runtime_state.hpp"
#include "streaming.hpp"

#include <headrace/coro/async_scope.hpp>
#include <headrace/coro/blocking.hpp>
#include <headrace/stream/model.hpp>

#include <doctest/doctest.h>
#include <support/scripted_server.hpp>

#include <algorithm>
#include <atomic>
#include <deque>
#include <filesystem>
#include <new>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace headrace {
namespace {

using namespace std::chrono_literals;
using test::checkpoint;
using test::equal_tensors;
using test::failure_of;
using test::scripted_server;
using test::seen_request;
using test::small_model;
using test::steps;
using test::temporary_directory;
using test::wanted_tensor;
namespace action = test::action;

/// A model in a directory, opened.
struct opened_model {
  temporary_directory place;
  checkpoint expected;
  runtime engine;
  model opened;

  explicit opened_model(checkpoint wanted, runtime_options given = {.threads = 2},
                        open_options how = {})
      : expected(std::move(wanted)),
        engine(given),
        opened((place.write(expected), test::run(open(engine, place.path(), how)))) {}

  [[nodiscard]] memory_usage usage() const { return engine.state()->memory().usage(); }
};

std::vector<std::string> names_of(const checkpoint& wanted) {
  std::vector<std::string> names;
  for (const auto& [file, tensors] : wanted.files) {
    for (const auto& t : tensors) names.push_back(t.name);
  }
  return names;
}

task<std::vector<std::string>> take(async_generator<tensor>* tensors, std::size_t count) {
  std::vector<std::string> names;
  while (names.size() < count) {
    auto* const t = co_await tensors->next();
    if (t == nullptr) break;
    names.emplace_back(t->name());
  }
  co_return names;
}

std::optional<errc> kind_of_next(async_generator<tensor>& tensors, std::stop_token stop = {}) {
  const auto failed =
      failure_of([&] { static_cast<void>(test::run(tensors.next(), std::move(stop))); });
  if (!failed) return std::nullopt;
  return failed->kind();
}

/// A model of one file on a server. What lies beyond its first 64 KiB waits for the signal `go`.
struct slow_model {
  checkpoint expected;
  std::string bytes;
  scripted_server server;

  explicit slow_model(checkpoint wanted)
      : expected(std::move(wanted)),
        bytes(test::safetensors_file(expected.files.begin()->second)),
        server([this](const seen_request& request) -> steps {
          if (request.path() != "/m/model.safetensors") return {action::send{test::answer(404)}};
          const std::string whole = test::answer_with(bytes, request);
          if (request.range() && request.range()->begin == 0) return {action::send{whole}};
          const auto begun = whole.find("\r\n\r\n") + 100;
          return {action::send{whole.substr(0, begun)}, action::wait_for{"go"},
                  action::send{whole.substr(begun)}};
        }) {}

  [[nodiscard]] std::string url() const { return server.url("/m"); }
};

TEST_SUITE("unit") {
  TEST_CASE("every tensor arrives with its bytes, in both orders") {
    const opened_model here(small_model());
    for (const auto order : {delivery::completion, delivery::requested}) {
      const auto all = test::stream_all(here.opened, here.expected, {.order = order});
      CHECK(all.right);
      CHECK(all.bytes == here.expected.bytes());
      auto names = all.names;
      auto expected = names_of(here.expected);
      if (order == delivery::completion) {
        std::ranges::sort(names);
        std::ranges::sort(expected);
      }
      CHECK(names == expected);
    }
  }

  TEST_CASE("tensors come in the order of request where that is asked for") {
    const opened_model here(equal_tensors(50, 30'000));
    stream_options how{.memory_limit = 16_MiB, .order = delivery::requested};
    std::vector<std::string> expected = names_of(here.expected);
    std::mt19937 random(5);
    std::ranges::shuffle(expected, random);
    for (const auto& name : expected) how.tensors.push_back({name});
    const auto all = test::stream_all(here.opened, here.expected, how);
    CHECK(all.right);
    CHECK(all.names == expected);
  }

  TEST_CASE("slices arrive as the naive ones") {
    const opened_model here(small_model());
    const auto& embed = *here.expected.find("embed.weight");
    const auto whole = test::content_of(embed.name, embed.size());
    const std::uint64_t row = embed.shape[1] * 2;
    for (const auto& [first, last] : std::vector<std::pair<std::uint64_t, std::uint64_t>>{
             {0, 1}, {100, 300}, {3000, 3840}, {0, 3840}}) {
      auto tensors = here.opened.stream({.tensors = {{"embed.weight", {{first, last}, {10, 50}}}}});
      auto* const t = test::run(tensors.next());
      REQUIRE(t != nullptr);
      std::string expected;
      for (auto at = first; at < last; ++at) expected += whole.substr(at * row + 20, 80);
      CHECK((test::text_of(*t) == expected));
      CHECK(test::run(tensors.next()) == nullptr);
    }
  }

  TEST_CASE("tensors around the end of the speculative bytes are whole") {
    for (const std::uint64_t size :
         {1'000U, 60'000U, 64'900U, 65'000U, 65'300U, 65'400U, 65'536U, 70'000U}) {
      CAPTURE(size);
      checkpoint wanted;
      wanted.files["model.safetensors"] = {{"a", dtype::u8, {size}},
                                           {"b", dtype::u8, {500}},
                                           {"c", dtype::u8, {100'000}},
                                           {"d", dtype::u8, {0}}};
      const opened_model here(wanted);
      // The first stream has them, the second asks again.
      for (int round = 0; round < 2; ++round) {
        const auto all = test::stream_all(here.opened, wanted);
        CHECK(all.right);
        CHECK(all.names.size() == 4);
      }
    }
  }

  TEST_CASE("what open has read is delivered before anything is asked for") {
    slow_model there(equal_tensors(40, 10'000));
    runtime engine({.threads = 1});
    const model opened = test::run(open(engine, there.url()));
    auto tensors = opened.stream();
    const auto first = test::run(take(&tensors, 6));
    CHECK(first.size() == 6);
    there.server.signal("go");
    const auto rest = test::run(test::drain(&tensors, &there.expected));
    CHECK(rest.right);
    CHECK(rest.names.size() == 34);
  }

  TEST_CASE("many streams of a model at once do not disturb each other") {
    const opened_model here(small_model(4), {.threads = 3});
    std::atomic<int> right{0};
    std::vector<std::thread> consumers;
    for (int number = 0; number < 6; ++number) {
      consumers.emplace_back([&here, &right, number] {
        const auto order = number % 2 == 0 ? delivery::completion : delivery::requested;
        const auto all =
            test::stream_all(here.opened, here.expected, {.memory_limit = 16_MiB, .order = order});
        if (all.right && all.names.size() == here.expected.tensors()) ++right;
      });
    }
    for (auto& consumer : consumers) consumer.join();
    CHECK(right == 6);
  }

  TEST_CASE("a consumer that holds two streams never blocks itself") {
    const opened_model here(equal_tensors(40, 100'000), {.threads = 1}, {.chunk_size = 256_KiB});
    auto first = here.opened.stream({.memory_limit = 256_KiB});
    auto second = here.opened.stream({.memory_limit = 256_KiB});
    std::size_t count = 0;
    for (;;) {
      const auto one = test::run(take(&first, 1));
      const auto other = test::run(take(&second, 1));
      if (one.empty() && other.empty()) break;
      count += one.size() + other.size();
    }
    CHECK(count == 80);
  }

  TEST_CASE("memory stays within the limit, or the largest tensor") {
    struct example {
      checkpoint wanted;
      std::size_t limit;
    };
    checkpoint mixed = equal_tensors(30, 70'000);
    mixed.files["model.safetensors"].insert(mixed.files["model.safetensors"].begin() + 7,
                                            {"large", dtype::u8, {3'000'000}});
    mixed.files["model.safetensors"].insert(mixed.files["model.safetensors"].begin() + 20,
                                            {"larger", dtype::u8, {5'000'001}});
    checkpoint large = equal_tensors(6, 1'500'000);
    for (const auto& [wanted, limit] :
         {example{equal_tensors(60, 100'000), 1_MiB}, example{mixed, 512_KiB},
          example{mixed, 4_MiB}, example{large, 512_KiB}, example{large, 4_MiB}}) {
      for (const auto order : {delivery::completion, delivery::requested}) {
        opened_model here(wanted, {.threads = 2}, {.chunk_size = 256_KiB});
        std::uint64_t largest = 0;
        for (const auto& t : wanted.files.begin()->second) largest = std::max(largest, t.size());
        const std::size_t bound = std::max(limit, host_arena::footprint(largest));
        std::atomic<std::size_t> most{0};
        const auto look = [&here, &most] {
          const auto now = here.usage();
          const auto used = now.live + now.extra + now.idle;
          std::size_t before = most.load();
          while (before < used && !most.compare_exchange_weak(before, used)) {
          }
        };
        auto tensors = here.opened.stream({.memory_limit = limit,
                                           .order = order,
                                           .on_progress = [&look](const progress&) { look(); }});
        std::size_t count = 0;
        for (auto& t : blocking(std::move(tensors))) {
          look();
          CHECK(test::is(t, *wanted.find(t.name())));
          ++count;
        }
        CHECK(count == wanted.tensors());
        CHECK(most > 0);
        CHECK(most <= bound);
      }
    }
  }

  TEST_CASE(
      "a tensor that needs the memory of the speculative bytes does not cost those that have begun with them") {
    // The first bytes of `begun` are known; in the same breath `large` is found to need the memory
    // that they are in.
    for (const std::uint64_t large : {190'000U, 200'000U, 262'144U, 300'000U, 1'000'000U}) {
      for (const auto order : {delivery::completion, delivery::requested}) {
        checkpoint wanted;
        wanted.files["a.safetensors"] = {{"a", dtype::u8, {1'000}},
                                         {"begun", dtype::u8, {70'000}},
                                         {"large", dtype::u8, {large}}};
        wanted.files["b.safetensors"] = {{"b", dtype::u8, {30}}, {"last", dtype::u8, {large / 2}}};
        const opened_model here(wanted, {.threads = 1}, {.chunk_size = 64_KiB});
        const auto all =
            test::stream_all(here.opened, wanted, {.memory_limit = 512_KiB, .order = order});
        CHECK(all.right);
        CHECK(all.names.size() == wanted.tensors());
        const model again = test::run(
            open(const_cast<runtime&>(here.engine), here.place.path(), {.chunk_size = 64_KiB}));
        const auto narrow =
            test::stream_all(again, wanted, {.memory_limit = 300'000, .order = order});
        CHECK(narrow.right);
        CHECK(narrow.names.size() == wanted.tensors());
      }
    }
  }

  TEST_CASE("a limit of exactly one chunk is enough") {
    for (const std::size_t chunk : {64_KiB, 256_KiB, 1_MiB}) {
      for (const std::uint64_t size : {1'000U, 66'000U, 300'000U, 2'000'000U}) {
        CAPTURE(chunk);
        CAPTURE(size);
        const opened_model here(equal_tensors(12, size), {.threads = 1}, {.chunk_size = chunk});
        const auto all = test::stream_all(here.opened, here.expected, {.memory_limit = chunk});
        CHECK(all.right);
        CHECK(all.names.size() == 12);
      }
    }
  }

  TEST_CASE("a limit below the chunk size is refused before anything is read") {
    opened_model here(small_model(1));
    const auto before = here.opened.statistics().requests;
    auto tensors = here.opened.stream({.memory_limit = 16_MiB - 1});
    CHECK(kind_of_next(tensors) == errc::invalid_request);
    CHECK(test::run(tensors.next()) == nullptr);
    test::run(tensors.close());
    CHECK(here.opened.statistics().requests == before);
  }

  TEST_CASE(
      "selections that name nothing, slices out of bounds and devices that are not there are refused") {
    const opened_model here(small_model(1));
    const auto refused = [&here](stream_options how) {
      auto tensors = here.opened.stream(std::move(how));
      const auto kind = kind_of_next(tensors);
      CHECK(test::run(tensors.next()) == nullptr);
      return kind;
    };
    CHECK(refused({.tensors = {{"no such tensor"}}}) == errc::not_found);
    CHECK(refused({.tensors = {{"norm.weight", {{1000, 1001}}}}}) == errc::invalid_request);
    stream_options cuda;
    cuda.device.kind = device::type::cuda;
    CHECK(refused(cuda) == errc::unsupported);
  }

  TEST_CASE("random models under random limits arrive whole, whatever the consumer does") {
    std::mt19937_64 random(424242);
    const auto below = [&random](std::uint64_t bound) { return random() % bound; };
    for (int round = 0; round < 12; ++round) {
      checkpoint wanted;
      const auto files = 1 + below(4);
      for (std::uint64_t file = 0; file < files; ++file) {
        auto& held = wanted.files["part-" + std::to_string(file) + ".safetensors"];
        for (auto count = 1 + below(25); count > 0; --count) {
          const std::uint64_t size = below(8) == 0   ? below(900'000)
                                     : below(4) == 0 ? below(100)
                                                     : below(60'000);
          held.push_back(
              {"t" + std::to_string(file) + "." + std::to_string(count), dtype::u8, {size}});
        }
      }
      const std::size_t chunk = 64_KiB << below(4);
      const opened_model here(
          wanted, {.threads = static_cast<unsigned>(1 + below(3))},
          {.chunk_size = chunk, .max_concurrency = static_cast<unsigned>(1 + below(12))});
      for (int repeat = 0; repeat < 10; ++repeat) {
        // The speculative bytes go to the first stream after an opening.
        const model again = test::run(
            open(const_cast<runtime&>(here.engine), here.place.path(),
                 {.chunk_size = chunk, .max_concurrency = static_cast<unsigned>(1 + below(12))}));
        stream_options how;
        how.memory_limit = chunk * (1 + below(below(2) == 0 ? 2 : 12));
        how.order = below(2) == 0 ? delivery::completion : delivery::requested;
        std::vector<std::string> expected;  // as the files hold them
        for (const auto& info : again.tensors()) expected.push_back(info.name);
        if (how.order == delivery::requested && below(2) == 0) {
          std::ranges::shuffle(expected, random);
          for (const auto& name : expected) how.tensors.push_back({name});
        }
        CAPTURE(round);
        CAPTURE(repeat);
        auto tensors = again.stream(how);
        const auto keep = below(3);  // nothing, some for a while, everything
        std::deque<tensor> kept;
        std::vector<std::string> names;
        bool right = true;
        for (auto& t : blocking(std::move(tensors))) {
          names.emplace_back(t.name());
          if (!test::is(t, *wanted.find(t.name()))) right = false;
          if (keep == 0 || (keep == 1 && below(2) == 0)) continue;
          kept.push_back(std::move(t));
          if (keep == 1 && kept.size() > 5) kept.pop_front();
        }
        for (const auto& t : kept) {
          if (!test::is(t, *wanted.find(t.name()))) right = false;
        }
        REQUIRE(right);
        if (how.order == delivery::requested) {
          REQUIRE(names == expected);
        } else {
          std::ranges::sort(names);
          std::ranges::sort(expected);
          REQUIRE(names == expected);
        }
      }
    }
  }

  TEST_CASE("for_each hands over every tensor and closes") {
    const opened_model here(small_model());
    std::size_t count = 0;
    test::run(for_each(here.opened.stream(), [&](tensor& t) {
      CHECK(test::is(t, *here.expected.find(t.name())));
      ++count;
    }));
    CHECK(count == here.expected.tensors());
    CHECK(here.usage().live == 0);
  }

  TEST_CASE("a consumer that throws closes its stream") {
    const opened_model here(equal_tensors(100, 50'000), {.threads = 2}, {.chunk_size = 256_KiB});
    std::size_t count = 0;
    CHECK_THROWS_AS(test::run(for_each(here.opened.stream({.memory_limit = 512_KiB}),
                                       [&count](tensor&) {
                                         if (++count == 7)
                                           throw std::logic_error("the consumer's own");
                                       })),
                    std::logic_error);
    CHECK(count == 7);
    CHECK(here.usage().live == 0);
    CHECK(test::stream_all(here.opened, here.expected).right);
  }

#if defined(__clang__)
  TEST_CASE("for co_await reads a stream") {
    const opened_model here(small_model());
    struct loop {
      static task<std::size_t> count(async_generator<tensor> tensors) {
        std::size_t seen = 0;
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wdeprecated-coroutine"
#pragma clang diagnostic ignored "-Wunknown-warning-option"
#pragma clang diagnostic ignored "-Wdeprecated-experimental-coroutine"
#pragma clang diagnostic ignored "-Wcoroutine-missing-unhandled-exception"
        for co_await (tensor & t : tensors) {
          if (!t.name().empty()) ++seen;
        }
#pragma clang diagnostic pop
        co_return seen;
      }
    };
    CHECK(test::run(loop::count(here.opened.stream())) == here.expected.tensors());
  }
#endif

  TEST_CASE("close() waits for the end and makes next() null") {
    slow_model there(equal_tensors(40, 100'000));
    runtime engine({.threads = 2});
    const model opened = test::run(open(engine, there.url()));
    auto tensors = opened.stream({.memory_limit = 64_MiB});
    std::stop_source stop;
    const auto stopper = std::jthread([&] {
      CHECK(there.server.wait_for_requests(3));
      stop.request_stop();
    });
    CHECK(kind_of_next(tensors, stop.get_token()) == errc::cancelled);
    CHECK(test::run(tensors.next()) == nullptr);
    test::run(tensors.close());
    CHECK(test::run(tensors.next()) == nullptr);
    CHECK(engine.state()->memory().usage().live == 0);
    // The server notices once it goes on; what is left are idle connections, one a loop at most.
    there.server.signal("go");
    CHECK(there.server.wait_for_open_connections(2));
  }

  TEST_CASE("close() on a stream that nobody began does nothing") {
    const opened_model here(small_model(1));
    auto tensors = here.opened.stream();
    test::run(tensors.close());
    CHECK(test::run(tensors.next()) == nullptr);
    async_generator<tensor> other = here.opened.stream();
    other = here.opened.stream();
    CHECK(test::run(test::drain(&other, &here.expected)).right);
  }

  TEST_CASE("a stop while next() waits throws cancelled, then null") {
    slow_model there(equal_tensors(30, 100'000));
    runtime engine({.threads = 1});
    const model opened = test::run(open(engine, there.url()));
    auto tensors = opened.stream();
    std::stop_source stop;
    const auto stopper = std::jthread([&] {
      CHECK(there.server.wait_for_requests(3));
      stop.request_stop();
    });
    CHECK(kind_of_next(tensors, stop.get_token()) == errc::cancelled);
    CHECK(test::run(tensors.next()) == nullptr);
    CHECK(test::run(tensors.next()) == nullptr);
  }

  TEST_CASE("a stop that was there before next() throws cancelled too") {
    const opened_model here(small_model(1));
    std::stop_source stop;
    stop.request_stop();
    auto fresh = here.opened.stream();
    CHECK(kind_of_next(fresh, stop.get_token()) == errc::cancelled);
    CHECK(test::run(fresh.next()) == nullptr);
    auto begun = here.opened.stream();
    CHECK(test::run(begun.next()) != nullptr);
    CHECK(kind_of_next(begun, stop.get_token()) == errc::cancelled);
    CHECK(test::run(begun.next()) == nullptr);
  }

  TEST_CASE("with_timeout around next() throws timeout, then null") {
    slow_model there(equal_tensors(30, 100'000));
    runtime engine({.threads = 1});
    const model opened = test::run(open(engine, there.url()));
    auto tensors = opened.stream();
    const auto failed = failure_of([&] { sync_wait(with_timeout(30ms, tensors.next())); });
    REQUIRE(failed);
    CHECK(failed->kind() == errc::timeout);
    CHECK(test::run(tensors.next()) == nullptr);
  }

  TEST_CASE("a stream beyond its deadline throws timeout") {
    slow_model there(equal_tensors(30, 100'000));
    runtime engine({.threads = 2});
    const model opened = test::run(open(engine, there.url(), {.deadline = 400ms}));
    auto tensors = opened.stream();
    const auto failed =
        failure_of([&] { static_cast<void>(test::run(test::drain(&tensors, &there.expected))); });
    REQUIRE(failed);
    CHECK(failed->kind() == errc::timeout);
    CHECK(failed->message().find("400 ms") != std::string::npos);
    CHECK(test::run(tensors.next()) == nullptr);
  }

  TEST_CASE("an open beyond its deadline throws timeout") {
    scripted_server server([](const seen_request&) -> steps { return {action::stall{}}; });
    runtime engine({.threads = 1});
    const auto failed = failure_of(
        [&] { static_cast<void>(test::run(open(engine, server.url("/m"), {.deadline = 50ms}))); });
    REQUIRE(failed);
    CHECK(failed->kind() == errc::timeout);
  }

  TEST_CASE("a generator dropped half-way, or never begun, leaves nothing behind") {
    const opened_model here(equal_tensors(60, 100'000), {.threads = 2}, {.chunk_size = 256_KiB});
    {
      auto never = here.opened.stream();
    }
    for (const std::size_t count : {1U, 5U, 59U, 60U}) {
      auto tensors = here.opened.stream({.memory_limit = 1_MiB});
      CHECK(test::run(take(&tensors, count)).size() == count);
    }
    CHECK(test::stream_all(here.opened, here.expected).right);
  }

  TEST_CASE(
      "a generator dropped while the server holds back the bytes is ended in the background") {
    slow_model there(equal_tensors(30, 60'000));
    runtime engine({.threads = 2});
    const model opened = test::run(open(engine, there.url()));
    {
      auto tensors = opened.stream();
      CHECK(test::run(take(&tensors, 1)).size() == 1);
      CHECK(there.server.wait_for_requests(3));
    }
    there.server.signal("go");
    CHECK(there.server.wait_for_open_connections(2));
    CHECK(test::stream_all(opened, there.expected).right);
  }

  TEST_CASE("progress only grows and ends at everything") {
    const opened_model here(equal_tensors(200, 40'000), {.threads = 3}, {.chunk_size = 64_KiB});
    // Plain variables: one call at a time is promised.
    progress last;
    std::size_t calls = 0;
    bool grows = true;
    const auto all =
        test::stream_all(here.opened, here.expected,
                         {.memory_limit = 1_MiB, .on_progress = [&](const progress& now) {
                            if (now.bytes < last.bytes || now.tensors < last.tensors) grows = false;
                            last = now;
                            ++calls;
                          }});
    CHECK(all.right);
    CHECK(grows);
    CHECK(calls >= 1);
    CHECK(last.bytes == here.expected.bytes());
    CHECK(last.total_bytes == here.expected.bytes());
    CHECK(last.tensors == 200);
    CHECK(last.total_tensors == 200);
  }

  TEST_CASE("a progress callback that throws fails its stream and no other") {
    const opened_model here(equal_tensors(40, 100'000));
    const auto fails = [&here](std::function<void(const progress&)> report) {
      auto tensors = here.opened.stream({.on_progress = std::move(report)});
      return failure_of(
          [&] { static_cast<void>(test::run(test::drain(&tensors, &here.expected))); });
    };
    const auto known =
        fails([](const progress&) { throw std::runtime_error("the callback's own"); });
    REQUIRE(known);
    CHECK(known->kind() == errc::internal);
    CHECK(known->message().find("the callback's own") != std::string::npos);
    const auto memory = fails([](const progress&) { throw std::bad_alloc(); });
    REQUIRE(memory);
    CHECK(memory->kind() == errc::out_of_memory);
    REQUIRE(fails([](const progress&) { throw 42; }));
    // Only the last call.
    REQUIRE(fails([](const progress& now) {
      if (now.bytes == now.total_bytes) throw std::runtime_error("at the end");
    }));
    CHECK(test::stream_all(here.opened, here.expected).right);
  }

  TEST_CASE(
      "a file that changes after it was opened is object_changed, and none of its new bytes is delivered") {
    for (const bool shorter : {false, true}) {
      opened_model here(equal_tensors(20, 100'000), {.threads = 1}, {.chunk_size = 256_KiB});
      auto tensors = here.opened.stream({.memory_limit = 256_KiB});
      CHECK(test::run(take(&tensors, 2)).size() == 2);
      const auto file = here.place.path_of("model.safetensors");
      if (shorter) {
        std::filesystem::resize_file(file, 500'000);
      } else {
        here.place.write(
            "model.safetensors",
            test::safetensors_file(here.expected.files.begin()->second, {.version = 1}));
      }
      // Within one tick of the file system's clock a change could not be told.
      std::filesystem::last_write_time(file, std::filesystem::last_write_time(file) + 10s);
      std::optional<error> failed;
      bool right = true;
      try {
        while (const auto* t = test::run(tensors.next())) {
          if (!test::is(*t, *here.expected.find(t->name()))) right = false;
        }
      } catch (const error& thrown) {
        failed = thrown;
      }
      CHECK(right);
      REQUIRE(failed);
      CHECK(failed->kind() == errc::object_changed);
      CHECK(failed->message().find("model.safetensors") != std::string::npos);
      CHECK(test::run(tensors.next()) == nullptr);
    }
  }

  TEST_CASE("a trace holds a span for each range") {
    open_options how;
    how.trace = std::make_shared<trace>();
    const opened_model here(equal_tensors(20, 100'000), {.threads = 1}, how);
    CHECK(test::stream_all(here.opened, here.expected).right);
    CHECK(how.trace->to_json().find("\"range\"") != std::string::npos);
  }
}

}  // namespace
}  // namespace headrace
