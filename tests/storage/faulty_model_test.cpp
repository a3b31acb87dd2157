#include <headrace/base/sizes.hpp>
#include <headrace/coro/sync_wait.hpp>
#include <headrace/coro/with.hpp>
#include <headrace/stream/model.hpp>
#include <headrace/stream/runtime.hpp>

#include <doctest/doctest.h>
#include <support/checkpoint.hpp>
#include <support/faulty_store.hpp>
#include <support/scripted_server.hpp>

#include <atomic>
#include <chrono>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace headrace {
namespace {

using namespace std::chrono_literals;
using test::checkpoint;
using test::faulty_store;
using test::scripted_server;
using test::seen_request;
using test::steps;

struct outcome {
  std::optional<error> failed;
  std::size_t tensors = 0;
  bool right = true;
};

task<void> stream_model(runtime* engine, std::string url, const checkpoint* expected,
                        std::size_t limit, outcome* into) {
  const model opened = co_await open(*engine, std::move(url),
                                     {.chunk_size = 64_KiB, .stall_limit = 20s, .retries = 30});
  auto tensors = opened.stream({.memory_limit = limit});
  while (auto* t = co_await tensors.next()) {
    const auto* const wanted = expected->find(t->name());
    const auto bytes = t->bytes();
    if (wanted == nullptr ||
        std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()) !=
            test::content_of(wanted->name, wanted->size())) {
      into->right = false;
    }
    ++into->tensors;
  }
  co_await tensors.close();
}

TEST_SUITE("fault") {
  TEST_CASE(
      "a whole model arrives right through a thousand schedules of faults, and each part is asked for where it broke off") {
    const checkpoint expected = test::small_model(3, 96, 5);
    constexpr unsigned schedules = 1000;
    constexpr unsigned at_once = 100;
    std::vector<outcome> outcomes(schedules);
    std::vector<std::vector<std::string>> complaints(schedules);
    std::atomic<int> faults{0};
    std::atomic<unsigned> next{0};
    std::vector<std::thread> streaming;
    for (unsigned number = 0; number < at_once; ++number) {
      streaming.emplace_back([&] {
        for (unsigned schedule = next++; schedule < schedules; schedule = next++) {
          faulty_store store(expected, 1000 + schedule);
          scripted_server server(
              [&store](const seen_request& request) { return store.answer_to(request); });
          runtime engine({.threads = 1 + schedule % 2});
          auto& seen = outcomes[schedule];
          try {
            sync_wait(with_timeout(60s, stream_model(&engine, server.url("/m"), &expected,
                                                     schedule % 3 == 0 ? 256_KiB : 8_MiB, &seen)));
          } catch (const error& failed) {
            seen.failed = failed;
          }
          complaints[schedule] = store.complaints();
          faults += store.faults();
        }
      });
    }
    for (auto& one : streaming) one.join();
    for (unsigned schedule = 0; schedule < schedules; ++schedule) {
      CAPTURE(schedule);
      const auto& seen = outcomes[schedule];
      CHECK_MESSAGE(!seen.failed, (seen.failed ? std::string(seen.failed->what()) : std::string()));
      CHECK(seen.right);
      CHECK(seen.tensors == expected.tensors());
      std::string all;
      for (const auto& complaint : complaints[schedule]) all += complaint + "\n";
      CHECK_MESSAGE(all.empty(), all);
    }
    CHECK(faults > 5000);
  }
}

}  // namespace
}  // namespace headrace
