#include <headrace/base/sizes.hpp>
#include <headrace/coro/sync_wait.hpp>
#include <headrace/coro/with.hpp>
#include <headrace/stream/model.hpp>
#include <headrace/stream/runtime.hpp>

#include <doctest/doctest.h>
#include <support/checkpoint.hpp>
#include <support/scripted_server.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace headrace {
namespace {

using namespace std::chrono_literals;
using test::answer;
using test::answer_with;
using test::checkpoint;
using test::scripted_server;
using test::seen_request;
using test::steps;
using test::action::close;
using test::action::reset;
using test::action::send;
namespace action = test::action;

/// A store of one model that breaks in every way that a range can, as a seed says, and remembers
/// what has to be asked for next.
class faulty_store {
 public:
  faulty_store(const checkpoint& model, std::uint64_t seed) : seed_(seed) {
    files_["model.safetensors.index.json"] = model.index();
    for (const auto& [name, tensors] : model.files) files_[name] = test::safetensors_file(tensors);
  }

  steps answer_to(const seen_request& request) {
    const auto slash = request.path().rfind('/');
    const auto found = files_.find(request.path().substr(slash + 1));
    if (found == files_.end()) return {send{answer(404)}};
    const std::string& bytes = found->second;
    const std::string etag = "\"" + found->first + "\"";
    const std::lock_guard lock(mutex_);
    const auto range = request.range();
    if (!range) {
      wrong_.push_back("a request without a range: " + request.target);
      return {send{answer(400)}};
    }
    auto& pinned = pinned_[found->first];
    const auto match = request.field("If-Match");
    if (match && *match != etag) wrong_.push_back("If-Match: " + *match);
    if (range->begin > 0 && !match)
      wrong_.push_back("no If-Match for " + request.target + " from " +
                       std::to_string(range->begin));
    if (range->begin >= bytes.size() && !bytes.empty()) wrong_.push_back("a range beyond the end");
    resumed_.erase({found->first, range->begin, range->end()});

    const std::string whole = answer_with(bytes, request, etag);
    const std::size_t body = whole.size() - (whole.find("\r\n\r\n") + 4);
    const auto upto = [&whole](std::size_t count) {
      return whole.substr(0, whole.find("\r\n\r\n") + 4 + count);
    };
    // Never three times without progress.
    const auto again = times_[{found->first, range->begin}]++;
    std::mt19937_64 chance(seed_ ^
                           (std::hash<std::string>()(found->first) + range->begin * 31 + again));
    const auto below = [&chance](std::uint64_t bound) { return bound == 0 ? 0 : chance() % bound; };
    if (again >= 2 || below(10) < 5) {
      pinned = true;
      return {send{whole}};
    }
    ++faults_;
    switch (below(11)) {
      case 0:
        return {reset{}};
      case 1:
        return {close{}};
      case 2:
        return {send{answer(503, {}, "busy")}};
      case 3:
        return {send{answer(500, {}, std::string(100'000, '<'))}};
      case 4:
        return {send{answer(429, {{"Retry-After", "0"}})}};
      case 5: {  // cut, orderly: what was sent has arrived
        const auto count = below(body);
        pinned = true;
        if (range->begin > 0 || count > 0)
          resumed_.insert(
              {found->first, range->begin + count, std::min(range->end(), bytes.size())});
        return {send{upto(count)}, close{}};
      }
      case 6:  // cut by a reset, which may overtake what was sent
        pinned = true;
        return {send{upto(below(body))}, reset{}};
      case 7: {  // shorter than asked
        pinned = true;
        seen_request shorter = request;
        const auto count = 1 + below(body);
        for (auto& [name, value] : shorter.fields) {
          if (name == "Range" || name == "range") {
            value = "bytes=" + std::to_string(range->begin) + "-" +
                    std::to_string(range->begin + count - 1);
          }
        }
        return {send{answer_with(bytes, shorter, etag)}};
      }
      case 8:  // the whole instead of a part
        pinned = true;
        return {send{answer(200, {{"ETag", etag}}, bytes)}};
      case 9:  // half a head
        return {send{whole.substr(0, below(whole.find("\r\n\r\n")))}, close{}};
      default:  // in small packets
        pinned = true;
        return {action::drip{whole, std::max<std::size_t>(1, whole.size() / 7), 0ms}};
    }
  }

  /// What was asked that should not have been, or not asked that should.
  [[nodiscard]] std::vector<std::string> complaints() {
    const std::lock_guard lock(mutex_);
    auto all = wrong_;
    for (const auto& missing : resumed_) {
      all.push_back(missing.file + " was cut at " + std::to_string(missing.begin) +
                    " and not resumed there, up to " + std::to_string(missing.end));
    }
    return all;
  }
  [[nodiscard]] int faults() {
    const std::lock_guard lock(mutex_);
    return faults_;
  }

 private:
  struct place {
    std::string file;
    std::uint64_t begin;
    std::uint64_t end;
    auto operator<=>(const place&) const = default;
  };

  const std::uint64_t seed_;
  std::map<std::string, std::string> files_;
  std::mutex mutex_;
  std::map<std::string, bool> pinned_;
  std::map<std::pair<std::string, std::uint64_t>, unsigned> times_;
  std::set<place> resumed_;
  std::vector<std::string> wrong_;
  int faults_ = 0;
};

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
      "a whole model arrives right through a hundred schedules of faults, and each part is asked for where it broke off") {
    const checkpoint expected = test::small_model(3, 96, 5);
    constexpr unsigned schedules = 100;
    constexpr unsigned at_once = 20;
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
    CHECK(faults > 500);
  }
}

}  // namespace
}  // namespace headrace
