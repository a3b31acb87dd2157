#include <headrace/stream/runtime.hpp>

#include "stream/runtime_state.hpp"
#include "streaming.hpp"

#include <doctest/doctest.h>
#include <support/scripted_server.hpp>

#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace headrace {
namespace {

using namespace std::chrono_literals;
using test::failure_of;
using test::process_counts;
using test::scripted_server;
using test::seen_request;
using test::small_model;
using test::steps;
using test::temporary_directory;
namespace action = test::action;

task<tensor> first_of(async_generator<tensor>* tensors) {
  auto* const t = co_await tensors->next();
  co_return t != nullptr ? std::move(*t) : tensor();
}

TEST_SUITE("unit") {
  TEST_CASE("a runtime starts nothing before its first use") {
    const process_counts before;
    const runtime engine({.threads = 3});
    CHECK(engine.threads() == 3);
    const process_counts now;
    CHECK(now.threads == before.threads);
    CHECK(engine.backend() != io_backend::automatic);
  }

  TEST_CASE("what was used is given back: descriptors and threads") {
    const temporary_directory place;
    const auto expected = small_model();
    place.write(expected);
    const process_counts before;
    for (int round = 0; round < 3; ++round) {
      runtime engine({.threads = 2});
      const model opened = test::run(open(engine, place.path()));
      CHECK(test::stream_all(opened, expected).right);
      auto half_way = opened.stream();
      CHECK(test::run(half_way.next()) != nullptr);
    }
    CHECK(before.reached_again());
  }

  TEST_CASE("threads end with the runtime, also where a model and a tensor live on") {
    const temporary_directory place;
    const auto expected = small_model(1);
    place.write(expected);
    place.write("config.json", "{}");
    const process_counts before;
    std::optional<model> kept;
    tensor out;
    {
      runtime engine({.threads = 2});
      kept = test::run(open(engine, place.path()));
      auto tensors = kept->stream();
      out = test::run(first_of(&tensors));
    }
    const process_counts now{.descriptors = SIZE_MAX, .threads = before.threads};
    CHECK(now.reached_again());
    CHECK(test::is(out, *expected.find(out.name())));
    CHECK(kept->tensors().size() == expected.tensors());

    auto tensors = kept->stream();
    const auto streamed = failure_of([&] { static_cast<void>(test::run(tensors.next())); });
    REQUIRE(streamed);
    CHECK(streamed->kind() == errc::cancelled);
    CHECK(test::run(tensors.next()) == nullptr);
    test::run(tensors.close());
    const auto read =
        failure_of([&] { static_cast<void>(test::run(kept->read_file("config.json"))); });
    REQUIRE(read);
    CHECK(read->kind() == errc::cancelled);
  }

  TEST_CASE("a stream that is open when its runtime goes ends with cancelled") {
    const temporary_directory place;
    test::checkpoint expected;
    for (int number = 0; number < 40; ++number) {
      expected.files["model.safetensors"].push_back(
          {"t" + std::to_string(number), dtype::u8, {100'000}});
    }
    place.write(expected);
    auto engine = std::make_unique<runtime>(runtime_options{.threads = 2});
    const model opened = test::run(open(*engine, place.path(), {.chunk_size = 256_KiB}));
    auto tensors = opened.stream({.memory_limit = 256_KiB});
    auto dropped = opened.stream({.memory_limit = 256_KiB});
    auto* const exposed = test::run(tensors.next());
    REQUIRE(exposed != nullptr);
    CHECK(test::run(dropped.next()) != nullptr);
    engine.reset();
    CHECK(test::is(*exposed, *expected.find(exposed->name())));
    const auto failed = failure_of([&] {
      while (test::run(tensors.next()) != nullptr) {
      }
    });
    REQUIRE(failed);
    CHECK(failed->kind() == errc::cancelled);
    CHECK(test::run(tensors.next()) == nullptr);
  }

  TEST_CASE("whoever waits on another thread when the runtime goes hears of it") {
    const std::string bytes = test::safetensors_file({{"a", dtype::u8, {300'000}}});
    scripted_server server([&bytes](const seen_request& request) -> steps {
      if (request.path().starts_with("/m/stalls")) return {action::stall{}};
      if (request.path() != "/m/model.safetensors") return {action::send{test::answer(404)}};
      if (request.range()->begin == 0) return {action::send{test::answer_with(bytes, request)}};
      return {action::stall{}};
    });
    auto engine = std::make_unique<runtime>(runtime_options{.threads = 2});
    const model opened = test::run(open(*engine, server.url("/m")));
    std::optional<error> streaming;
    std::optional<error> reading;
    std::optional<error> opening;
    {
      const std::jthread streams([&] {
        auto tensors = opened.stream();
        streaming = failure_of([&] { static_cast<void>(test::run(tensors.next())); });
      });
      const std::jthread reads([&] {
        reading = failure_of([&] { static_cast<void>(test::run(opened.read_file("stalls"))); });
      });
      const std::jthread opens([&] {
        opening = failure_of(
            [&] { static_cast<void>(test::run(open(*engine, server.url("/m/stalls")))); });
      });
      CHECK(server.wait_for_requests(5));
      engine.reset();
    }
    for (const auto& failed : {streaming, reading, opening}) {
      REQUIRE(failed);
      CHECK(failed->kind() == errc::cancelled);
    }
  }

  TEST_CASE("streams begun while the runtime goes are cancelled or served, and never lost") {
    const temporary_directory place;
    const auto expected = small_model(2, 24, 2);
    place.write(expected);
    for (int round = 0; round < 30; ++round) {
      auto engine = std::make_unique<runtime>(runtime_options{.threads = 2});
      const model opened = test::run(open(*engine, place.path()));
      std::atomic<int> wrong{0};
      std::vector<std::thread> consumers;
      for (int number = 0; number < 3; ++number) {
        consumers.emplace_back([&] {
          const auto failed = failure_of([&] {
            for (int count = 0; count < 20; ++count) {
              if (!test::stream_all(opened, expected).right) ++wrong;
            }
          });
          if (failed && failed->kind() != errc::cancelled) ++wrong;
        });
      }
      std::this_thread::yield();
      engine.reset();
      for (auto& consumer : consumers) consumer.join();
      CHECK(wrong == 0);
    }
  }

  TEST_CASE("the shared runtime is one") { CHECK(&runtime::shared() == &runtime::shared()); }
}

}  // namespace
}  // namespace headrace
