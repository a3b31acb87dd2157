#include "streaming.hpp"

#include <headrace/base/sizes.hpp>
#include <headrace/coro/async_scope.hpp>
#include <headrace/coro/sync_wait.hpp>
#include <headrace/coro/with.hpp>
#include <headrace/stream/model.hpp>
#include <headrace/stream/runtime.hpp>

#include <doctest/doctest.h>
#include <malloc.h>
#include <support/checkpoint.hpp>
#include <support/faulty_store.hpp>
#include <support/scripted_server.hpp>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace headrace {
namespace {

using namespace std::chrono_literals;
using test::checkpoint;
using test::faulty_store;
using test::scripted_server;
using test::seen_request;
using test::steps;

constexpr unsigned streams_at_once = 64;

// All streams talk to one host and share its token bucket: a retry costs what ten successes bring.
// With more faults than this the host would be left alone, as it should be.
constexpr unsigned faulty_percent = 5;

#if defined(__has_feature)
#define HEADRACE_HAS_FEATURE(name) __has_feature(name)
#else
#define HEADRACE_HAS_FEATURE(name) 0
#endif

// The sanitizers have allocators of their own, and find leaks themselves.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || \
    HEADRACE_HAS_FEATURE(address_sanitizer) || HEADRACE_HAS_FEATURE(thread_sanitizer)
constexpr bool counts_allocations = false;
#else
constexpr bool counts_allocations = true;
#endif

/// How long the load lasts: what the suite is meant to run, or `HEADRACE_LOAD_SECONDS` while
/// somebody works on it.
std::chrono::seconds load_duration() {
  const char* const given = std::getenv("HEADRACE_LOAD_SECONDS");  // NOLINT(concurrency-mt-unsafe)
  return std::chrono::seconds(given != nullptr ? std::atoi(given) : 60);  // NOLINT(cert-err34-c)
}

/// One server, and on it a place with its own faults for every model that is ever opened:
/// `/model/17/3` is the third one of stream 17.
class faulty_server {
 public:
  explicit faulty_server(const checkpoint& model)
      : model_(model), server_([this](const seen_request& request) { return answer(request); }) {}

  [[nodiscard]] std::string url(const std::string& place) const { return server_.url(place); }

  /// Forgets the place; what was asked wrongly there.
  std::vector<std::string> close(const std::string& place) {
    const std::lock_guard lock(mutex_);
    auto found = stores_.extract(place);
    if (found.empty()) return {};
    faults_ += static_cast<std::uint64_t>(found.mapped()->faults());
    return found.mapped()->complaints();
  }

  [[nodiscard]] std::uint64_t faults() {
    const std::lock_guard lock(mutex_);
    return faults_;
  }

 private:
  steps answer(const seen_request& request) {
    const std::string path = request.path();
    const std::string place = path.substr(0, path.rfind('/'));
    const std::lock_guard lock(mutex_);
    auto& store = stores_[place];
    if (store == nullptr)
      store =
          std::make_unique<faulty_store>(model_, std::hash<std::string>()(place), faulty_percent);
    return store->answer_to(request);
  }

  const checkpoint& model_;
  std::mutex mutex_;
  std::map<std::string, std::unique_ptr<faulty_store>> stores_;
  std::uint64_t faults_ = 0;
  scripted_server server_;
};

struct load {
  runtime& engine;
  faulty_server& server;
  const checkpoint& expected;
  std::chrono::steady_clock::time_point end;

  std::mutex mutex = {};
  unsigned models = 0;
  std::vector<std::string> wrong = {};
};

task<void> stream_once(load* all, std::string place, std::size_t limit) {
  const model opened = co_await open(
      all->engine, all->server.url(place),
      {.chunk_size = 64_KiB, .max_concurrency = 4, .stall_limit = 60s, .retries = 30});
  auto tensors = opened.stream({.memory_limit = limit});
  const auto seen = co_await test::drain(&tensors, &all->expected);
  const std::lock_guard lock(all->mutex);
  ++all->models;
  if (!seen.right || seen.names.size() != all->expected.tensors())
    all->wrong.push_back(place + " has other tensors");
}

/// One of the consumers: model after model until the time is over.
task<void> stream_for_long(load* all, unsigned number) {
  for (unsigned round = 0; std::chrono::steady_clock::now() < all->end; ++round) {
    const std::string place = "/model/" + std::to_string(number) + "/" + std::to_string(round);
    std::string failed;
    try {
      co_await stream_once(all, place, number % 2 == 0 ? 128_KiB : 4_MiB);
    } catch (const error& broken) {
      failed = broken.what();
    }
    auto complaints = all->server.close(place);
    const std::lock_guard lock(all->mutex);
    if (!failed.empty()) all->wrong.push_back(place + ": " + failed);
    for (auto& complaint : complaints) all->wrong.push_back(place + ": " + complaint);
  }
}

task<void> stream_all_at_once(load* all) {
  const environment given = co_await current_environment();
  async_scope consumers(given.stop);
  for (unsigned number = 0; number < streams_at_once; ++number)
    consumers.spawn(*given.executor, stream_for_long(all, number));
  co_await consumers.join();
}

std::size_t allocated() { return ::mallinfo2().uordblks; }

/// Streams for `duration` and gives how many models that were.
unsigned run_load(const checkpoint& expected, std::chrono::seconds duration) {
  faulty_server server(expected);
  runtime engine({.threads = 2});
  load all{engine, server, expected, std::chrono::steady_clock::now() + duration};
  sync_wait(with_timeout(duration + 300s, stream_all_at_once(&all)));
  for (const auto& complaint : all.wrong) CHECK_MESSAGE(false, complaint);
  CHECK(all.models >= streams_at_once);
  CHECK(server.faults() > 0);
  return all.models;
}

TEST_SUITE("fault") {
  TEST_CASE(
      "64 streams at once under faults bring the right bytes for a minute, and leave nothing behind") {
    const checkpoint expected = test::small_model(2, 24, 3);
    // What is made once a process, by us and by the libraries, is there after this.
    run_load(expected, 3s);
    const test::process_counts counts;
    const std::size_t before = allocated();
    const unsigned models = run_load(expected, load_duration());
    CHECK(counts.reached_again());
    if (counts_allocations) {
      const std::size_t after = allocated();
      CAPTURE(before);
      CAPTURE(after);
      CAPTURE(models);
      CHECK(after <= before + 64_KiB);  // a leak of a few bytes a model would be seen
    }
  }
}

}  // namespace
}  // namespace headrace
