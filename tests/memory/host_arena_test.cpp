#include <headrace/memory/host_arena.hpp>

#include <headrace/base/sizes.hpp>
#include <headrace/memory/host_pool.hpp>

#include <doctest/doctest.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <fstream>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <utility>
#include <vector>

// Sanitizers reserve terabytes of address space, so that a limit on it would hit them first.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define HEADRACE_TEST_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define HEADRACE_TEST_SANITIZED 1
#endif
#endif

using namespace headrace;

namespace {

constexpr std::size_t page = 4096;

[[nodiscard]] host_block take(host_arena& arena, std::size_t size) {
  auto block = arena.allocate(size);
  REQUIRE(block.has_value());
  return *std::move(block);
}

// Touches every page, as a receive would.
void fill(host_block& block, unsigned char value = 1) {
  if (block.size() != 0) std::memset(block.data(), value, block.size());
}

[[nodiscard]] std::size_t resident(const std::byte* data, std::size_t size) {
  const auto address = reinterpret_cast<std::uintptr_t>(data) / page * page;
  std::vector<unsigned char> pages(size / page + 1);
  REQUIRE(::mincore(reinterpret_cast<void*>(address), size, pages.data()) == 0);
  return static_cast<std::size_t>(
             std::ranges::count_if(pages, [](auto flags) { return (flags & 1) != 0; })) *
         page;
}

[[nodiscard]] std::size_t charged_and_idle(const memory_usage& usage) {
  return usage.live + usage.extra + usage.idle;
}

struct counting_listener final : release_listener {
  void memory_released() noexcept override { notices.fetch_add(1); }
  std::atomic<int> notices = 0;
};

}  // namespace

TEST_SUITE("unit") {
  // Where blocks lie

  TEST_CASE("blocks are split from the lowest address on, one beside the other") {
    host_pool pool;
    const auto arena = pool.open(64_MiB);
    const auto one = take(*arena, 100);
    const auto two = take(*arena, 64);
    const auto three = take(*arena, 5000);
    CHECK(two.data() == one.data() + 128);
    CHECK(three.data() == two.data() + 64);
  }

  TEST_CASE("a dropped block's very address is used again by the next block of its size") {
    host_pool pool;
    const auto arena = pool.open(64_MiB);
    const auto before = take(*arena, 3_MiB);
    const auto* data = take(*arena, 10_MiB).data();
    for (int i = 0; i < 3; ++i) CHECK(take(*arena, 10_MiB).data() == data);
    auto small = take(*arena, 1000);
    const auto after = take(*arena, 1000);
    data = small.data();
    small.reset();
    CHECK(take(*arena, 1000).data() == data);
  }

  TEST_CASE("the lowest hole that fits is taken, not the best fitting one") {
    host_pool pool;
    const auto arena = pool.open(64_MiB);
    auto large = take(*arena, 4096);
    const auto between = take(*arena, 64);
    auto exact = take(*arena, 1024);
    const auto after = take(*arena, 64);
    const auto* const lowest = large.data();
    const auto* const higher = exact.data();
    large.reset();
    exact.reset();
    const auto one = take(*arena, 1024);
    CHECK(one.data() == lowest);
    const auto two = take(*arena, 3072);
    CHECK(two.data() == lowest + 1024);
    CHECK(take(*arena, 1024).data() == higher);
  }

  TEST_CASE("neighbours coalesce in whatever order they are dropped") {
    std::array<int, 3> order{0, 1, 2};
    do {
      host_pool pool;
      const auto arena = pool.open(64_MiB);
      std::vector<host_block> blocks;
      const auto below = take(*arena, 64);
      for (int i = 0; i < 3; ++i) blocks.push_back(take(*arena, 64 * 1024));
      const auto above = take(*arena, 64);
      const auto* const data = blocks.front().data();
      for (const auto i : order) blocks[static_cast<std::size_t>(i)].reset();
      CHECK(take(*arena, 3 * 64 * 1024).data() == data);
    } while (std::ranges::next_permutation(order).found);
  }

  TEST_CASE("a block too large for the warm memory goes on from its end into cold memory") {
    host_pool pool;
    const auto arena = pool.open(64_MiB);
    const auto below = take(*arena, 2_MiB);
    const auto* const data = take(*arena, 4_MiB).data();
    CHECK(arena->usage().idle == 4_MiB);
    const auto larger = take(*arena, 16_MiB);
    CHECK(larger.data() == data);
    CHECK(arena->usage().idle == 0);
  }

  TEST_CASE("a warm hole is preferred to cold memory below it") {
    host_pool pool;
    const auto arena = pool.open(64_MiB);
    auto low = take(*arena, 4_MiB);
    const auto between = take(*arena, 2_MiB);
    auto high = take(*arena, 2_MiB);
    const auto above = take(*arena, 2_MiB);
    const auto* const cold = low.data();
    const auto* const warm = high.data();
    low.reset();
    pool.trim();
    high.reset();
    CHECK(take(*arena, 2_MiB).data() == warm);
    CHECK(take(*arena, 100).data() == warm);
    CHECK(take(*arena, 4_MiB).data() == cold);
  }

  TEST_CASE(
      "a block larger than the usual mapping gets one of its own, and its memory is used again") {
    host_pool pool;
    const auto arena = pool.open(64_MiB);
    const auto small = take(*arena, 100);
    const auto mapped = arena->usage().mapped;
    auto huge = take(*arena, mapped);
    CHECK(arena->usage().mapped == 2 * mapped);
    const auto* const data = huge.data();
    huge.data()[0] = std::byte{1};
    huge.data()[huge.size() - 1] = std::byte{1};
    huge.reset();
    CHECK(take(*arena, mapped).data() == data);
    CHECK(arena->usage().mapped == 2 * mapped);
    // Where the first mapping has room it is still the lowest.
    CHECK(take(*arena, 100).data() == small.data() + 128);
  }

  TEST_CASE("an allocation of nothing has no memory and costs nothing") {
    host_pool pool;
    const auto arena = pool.open(64_MiB);
    const auto block = take(*arena, 0);
    CHECK(block.data() == nullptr);
    CHECK(block.size() == 0);
    CHECK(arena->usage().live == 0);
    CHECK(arena->usage().mapped == 0);
  }

  TEST_CASE("a size that no machine has is out_of_memory, says so, and changes nothing") {
    host_pool pool;
    const auto arena = pool.open(64_MiB);
    const auto held = take(*arena, 1000);
    const auto before = arena->usage();
    constexpr auto most = std::numeric_limits<std::size_t>::max();
    for (const auto size :
         {most, most - 1, most - 4096, most / 2, most / 4, std::size_t{1} << 50}) {
      const auto block = arena->allocate(size);
      REQUIRE_FALSE(block.has_value());
      CHECK(block.error().kind() == errc::out_of_memory);
      CHECK(block.error().message().find(std::to_string(size)) != std::string::npos);
      CHECK_FALSE(arena->fits(size));
    }
    CHECK(arena->usage().live == before.live);
    CHECK(arena->usage().idle == before.idle);
    CHECK(arena->usage().mapped == before.mapped);
  }

#ifndef HEADRACE_TEST_SANITIZED
  TEST_CASE(
      "where the system refuses a large mapping a smaller one does, and then it is out_of_memory") {
    std::size_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    REQUIRE(pages != 0);
    rlimit usual{};
    REQUIRE(::getrlimit(RLIMIT_AS, &usual) == 0);
    auto tight = usual;
    tight.rlim_cur = pages * page + 300_MiB;
    REQUIRE(::setrlimit(RLIMIT_AS, &tight) == 0);
    {
      host_pool pool;
      const auto arena = pool.open(64_MiB);
      auto refused = arena->allocate(400_MiB);
      auto block = arena->allocate(100_MiB);
      auto small = arena->allocate(1000);
      const auto usage = arena->usage();
      REQUIRE(::setrlimit(RLIMIT_AS, &usual) == 0);
      REQUIRE_FALSE(refused.has_value());
      CHECK(refused.error().kind() == errc::out_of_memory);
      CHECK(refused.error().message().find(std::to_string(400_MiB)) != std::string::npos);
      REQUIRE(block.has_value());
      REQUIRE(small.has_value());
      CHECK(usage.mapped >= 100_MiB);
      CHECK(usage.mapped < 300_MiB);
      fill(*block);
    }
  }
#endif

  // The budget

  TEST_CASE("a footprint is rounded up to 64 bytes, from 1 MiB on to a page") {
    CHECK(host_arena::footprint(0) == 0);
    CHECK(host_arena::footprint(1) == 64);
    CHECK(host_arena::footprint(64) == 64);
    CHECK(host_arena::footprint(65) == 128);
    CHECK(host_arena::footprint(1_MiB - 1) == 1_MiB);
    CHECK(host_arena::footprint(1_MiB) == 1_MiB);
    CHECK(host_arena::footprint(1_MiB + 1) == 1_MiB + 4096);
    CHECK(host_arena::footprint(std::numeric_limits<std::size_t>::max()) >
          std::numeric_limits<std::size_t>::max() / 2);
  }

  TEST_CASE("bytes are counted in every state: live, held, idle, extra") {
    host_pool pool;
    const auto arena = pool.open(64_MiB);
    CHECK(charged_and_idle(arena->usage()) == 0);
    auto one = take(*arena, 10_MiB);
    auto two = take(*arena, 6_MiB);
    CHECK(arena->usage().live == 16_MiB);
    CHECK(arena->usage().idle == 0);
    arena->charge(3_MiB);
    CHECK(arena->usage().extra == 3_MiB);
    one.detach();
    CHECK(arena->usage().live == 6_MiB);
    CHECK(arena->usage().held == 10_MiB);
    two.reset();
    CHECK(arena->usage().live == 0);
    CHECK(arena->usage().idle == 6_MiB);
    one.reset();
    CHECK(arena->usage().held == 0);
    CHECK(arena->usage().idle == 16_MiB);
    arena->uncharge(1_MiB);
    CHECK(arena->usage().extra == 2_MiB);
    arena->uncharge(2_MiB);
    CHECK(arena->usage().extra == 0);
  }

  TEST_CASE("admission ends at the limit and goes on when a block is dropped or detached") {
    host_pool pool;
    const auto arena = pool.open(32_MiB);
    CHECK(arena->fits(32_MiB));
    auto one = take(*arena, 20_MiB);
    CHECK(arena->fits(12_MiB));
    CHECK_FALSE(arena->fits(12_MiB + 1));
    arena->charge(4_MiB);
    CHECK(arena->fits(8_MiB));
    CHECK_FALSE(arena->fits(8_MiB + 1));
    auto two = take(*arena, 8_MiB);
    CHECK_FALSE(arena->fits(1));
    CHECK(arena->fits(0));
    one.detach();
    CHECK(arena->fits(20_MiB));
    two.reset();
    CHECK(arena->fits(28_MiB));
    CHECK_FALSE(arena->fits(28_MiB + 1));
    arena->uncharge(4_MiB);
    CHECK(arena->fits(32_MiB));
  }

  TEST_CASE("a block larger than the limit is admitted alone, and alone only") {
    host_pool pool;
    const auto arena = pool.open(16_MiB);
    CHECK(arena->fits(100_MiB));
    auto small = take(*arena, 64);
    CHECK_FALSE(arena->fits(100_MiB));
    small.reset();
    arena->charge(1);
    CHECK_FALSE(arena->fits(100_MiB));
    arena->uncharge(1);
    CHECK(arena->fits(100_MiB));
    auto oversized = take(*arena, 100_MiB);
    CHECK(arena->usage().live == 100_MiB);
    CHECK(arena->usage().idle == 0);
    CHECK_FALSE(arena->fits(1));
    oversized.detach();
    CHECK(arena->fits(100_MiB));
  }

  TEST_CASE(
      "an oversized block's memory serves the next oversized one, and a smaller one trims it") {
    host_pool pool;
    const auto arena = pool.open(16_MiB);
    const auto* const data = take(*arena, 100_MiB).data();
    CHECK(arena->usage().idle == 100_MiB);
    CHECK(take(*arena, 100_MiB).data() == data);
    CHECK(arena->usage().idle == 100_MiB);
    const auto small = take(*arena, 4_MiB);
    CHECK(small.data() == data);
    CHECK(arena->usage().live == 4_MiB);
    CHECK(arena->usage().idle == 12_MiB);
  }

  TEST_CASE(
      "idle bytes give way to live, extra and returned ones, so that the sum keeps to the limit") {
    host_pool pool;
    const auto arena = pool.open(32_MiB);
    auto one = take(*arena, 10_MiB);
    auto two = take(*arena, 10_MiB);
    auto three = take(*arena, 10_MiB);
    one.reset();
    three.reset();
    CHECK(arena->usage().idle == 20_MiB);
    auto four = take(*arena, 20_MiB);  // goes on from the place of `three`
    CHECK(arena->usage().live == 30_MiB);
    CHECK(arena->usage().idle == 2_MiB);
    arena->charge(1_MiB);
    CHECK(charged_and_idle(arena->usage()) <= 32_MiB);
    arena->charge(5_MiB);  // beyond the limit: charged all the same, and nothing is idle
    CHECK(arena->usage().idle == 0);
    CHECK(charged_and_idle(arena->usage()) == 36_MiB);
    arena->uncharge(6_MiB);
    two.detach();
    four.detach();
    four.reset();
    two.reset();
    CHECK(arena->usage().live == 0);
    CHECK(arena->usage().idle == 30_MiB);
    auto five = take(*arena, 30_MiB);
    auto held = take(*arena, 20_MiB);
    held.detach();
    held.reset();  // 2 MiB of it fit
    CHECK(arena->usage().idle == 2_MiB);
  }

  TEST_CASE("trimmed memory goes back to the system, highest first, before new memory is touched") {
    host_pool pool;
    const auto arena = pool.open(32_MiB);
    auto low = take(*arena, 12_MiB);
    auto between = take(*arena, 2_MiB);
    auto high = take(*arena, 12_MiB);
    auto top = take(*arena, 2_MiB);
    fill(low);
    fill(between);
    fill(high);
    fill(top);
    const auto* const low_data = low.data();
    const auto* const high_data = high.data();
    low.reset();
    high.reset();
    CHECK(resident(low_data, 12_MiB) == 12_MiB);
    CHECK(resident(high_data, 12_MiB) == 12_MiB);

    auto fresh = take(*arena, 18_MiB);  // fits nowhere warm
    CHECK(charged_and_idle(arena->usage()) == 32_MiB);
    CHECK(arena->usage().idle == 10_MiB);
    CHECK(resident(high_data, 12_MiB) == 0);
    CHECK(resident(low_data, 12_MiB) == 10_MiB);
    CHECK(resident(low_data, 10_MiB) == 10_MiB);

    // Cold memory is memory all the same.
    between.reset();
    auto again = take(*arena, 14_MiB);
    CHECK(again.data() == low_data);
    fill(again, 9);
    CHECK(again.bytes()[14_MiB - 1] == std::byte{9});
  }

  TEST_CASE(
      "warm bytes are resident, cold ones are not, and small blocks count the page they touch") {
    host_pool pool;
    const auto arena = pool.open(64_MiB);
    auto block = take(*arena, 1000);
    fill(block);
    // The rest of the huge page that the block lies in is there as well, where the kernel has huge
    // pages.
    CHECK(charged_and_idle(arena->usage()) == 2_MiB);
    CHECK(resident(block.data(), 4_MiB) <= 2_MiB);

    const auto tight = pool.open(64 * 1024);
    auto small = take(*tight, 1000);
    CHECK(charged_and_idle(tight->usage()) == 4096);
  }

  TEST_CASE(
      "idle bytes that share a page with a block delay admission instead of breaking the limit") {
    host_pool pool;
    const auto arena = pool.open(1_MiB);
    std::vector<host_block> blocks;
    while (arena->fits(1024)) blocks.push_back(take(*arena, 1024));
    CHECK(blocks.size() >= 1020);
    for (std::size_t i = 0; i < blocks.size(); i += 2) blocks[i].reset();
    const auto usage = arena->usage();
    CHECK(usage.live < usage.idle + 2048);
    CHECK(arena->fits(1024));        // goes into one of the holes
    CHECK_FALSE(arena->fits(4096));  // would need new pages
    for (std::size_t i = 1; i < blocks.size() / 2; i += 2) blocks[i].reset();
    CHECK(arena->fits(4096));
    CHECK(arena->fits(200 * 1024));
    const auto larger = take(*arena, 200 * 1024);
    CHECK(charged_and_idle(arena->usage()) <= 1_MiB);
  }

  // Notices

  TEST_CASE(
      "memory that is warmed ahead is resident, is what the next block gets, and counts as idle") {
    host_pool pool;
    const auto arena = pool.open(32_MiB);
    CHECK(arena->warm_ahead(8_MiB, 2_MiB) == 0);  // nothing is mapped yet
    auto first = take(*arena, 1_MiB);
    fill(first);  // and with it the rest of its huge page, which counts as warm
    std::size_t warmed = 0;
    while (const auto step = arena->warm_ahead(8_MiB, 2_MiB)) {
      CHECK(step <= 2_MiB);
      warmed += step;
    }
    if (warmed == 0) return;  // a kernel that cannot
    CHECK(warmed >= 8_MiB);
    CHECK(arena->usage().idle >= 8_MiB);
    const auto next = take(*arena, 8_MiB);
    CHECK(resident(next.data(), next.size()) == next.size());
    CHECK(arena->warm_ahead(4_MiB, 0) == 0);
  }

  TEST_CASE("warming ahead stays within the limit, or the largest block") {
    host_pool pool;
    const auto arena = pool.open(8_MiB, {}, 16_MiB);
    const auto block = take(*arena, 6_MiB);
    while (arena->warm_ahead(64_MiB, 2_MiB) != 0) {
    }
    CHECK(arena->usage().live + arena->usage().idle <= 16_MiB);
    arena->close();
    CHECK(arena->warm_ahead(1_MiB, 1_MiB) == 0);
  }

  TEST_CASE("a notice is given once for each arming, by a drop, a detaching or an uncharging") {
    const auto listener = std::make_shared<counting_listener>();
    host_pool pool;
    const auto arena = pool.open(16_MiB, listener);
    auto one = take(*arena, 1000);
    auto two = take(*arena, 1000);
    auto three = take(*arena, 1000);
    auto four = take(*arena, 1000);
    arena->charge(500);
    one.reset();
    CHECK(listener->notices == 0);
    arena->notify_on_release();
    arena->notify_on_release();
    CHECK(listener->notices == 0);
    two.reset();
    CHECK(listener->notices == 1);
    three.reset();
    CHECK(listener->notices == 1);
    arena->notify_on_release();
    four.detach();
    CHECK(listener->notices == 2);
    arena->notify_on_release();
    four.reset();
    CHECK(listener->notices == 3);
    arena->notify_on_release();
    arena->uncharge(500);
    CHECK(listener->notices == 4);
    arena->notify_on_release();
    const auto none = take(*arena, 0);
    CHECK(listener->notices == 4);
    arena->close();
    CHECK(listener->notices == 4);
  }

  TEST_CASE("the listener may call the arena, and may be gone") {
    struct calling_listener final : release_listener {
      void memory_released() noexcept override {
        fitted = arena->fits(16_MiB);
        arena->notify_on_release();
      }
      host_arena* arena = nullptr;
      bool fitted = false;
    };
    auto listener = std::make_shared<calling_listener>();
    host_pool pool;
    const auto arena = pool.open(16_MiB, listener);
    listener->arena = arena.get();
    auto one = take(*arena, 10_MiB);
    auto two = take(*arena, 1_MiB);
    arena->notify_on_release();
    one.reset();
    CHECK_FALSE(listener->fitted);
    two.reset();
    CHECK(listener->fitted);
    auto three = take(*arena, 1_MiB);
    listener.reset();
    three.reset();
  }

  TEST_CASE(
      "no wake-up is lost between a producer that waits for room and threads that drop blocks") {
    struct waking_listener final : release_listener {
      void memory_released() noexcept override {
        const std::lock_guard lock(mutex);
        woken = true;
        changed.notify_all();
      }
      std::mutex mutex;
      std::condition_variable changed;
      bool woken = false;
    };
    const auto listener = std::make_shared<waking_listener>();
    host_pool pool;
    const auto arena = pool.open(4 * 64 * 1024, listener);  // four at a time

    std::mutex mutex;
    std::condition_variable filled;
    std::deque<host_block> blocks;
    bool ended = false;
    std::vector<std::thread> consumers;
    for (int i = 0; i < 3; ++i) {
      consumers.emplace_back([&, i] {
        for (;;) {
          host_block block;
          {
            std::unique_lock lock(mutex);
            filled.wait(lock, [&] { return ended || !blocks.empty(); });
            if (blocks.empty()) return;
            block = std::move(blocks.front());
            blocks.pop_front();
          }
          if (i == 0) block.detach();
        }
      });
    }

    std::size_t waits = 0;
    bool lost = false;
    for (int i = 0; i < 30'000 && !lost; ++i) {
      while (!arena->fits(64 * 1024)) {
        {
          const std::lock_guard lock(listener->mutex);
          listener->woken = false;
        }
        arena->notify_on_release();
        if (arena->fits(64 * 1024)) break;
        ++waits;
        std::unique_lock lock(listener->mutex);
        if (!listener->changed.wait_for(lock, std::chrono::seconds(30),
                                        [&] { return listener->woken; })) {
          lost = true;
          break;
        }
      }
      auto block = arena->allocate(64 * 1024);
      if (!block) std::terminate();
      const std::lock_guard lock(mutex);
      blocks.push_back(*std::move(block));
      filled.notify_one();
    }
    {
      const std::lock_guard lock(mutex);
      ended = true;
      filled.notify_all();
    }
    for (auto& consumer : consumers) consumer.join();
    CHECK_FALSE(lost);
    CHECK(waits > 0);
    CHECK(arena->usage().live == 0);
    CHECK(arena->usage().held == 0);
  }

  // Against a model

  TEST_CASE(
      "whatever is allocated and dropped: no overlap, aligned, counted exactly, in the limit") {
    for (unsigned seed = 1; seed <= 8; ++seed) {
      CAPTURE(seed);
      std::mt19937_64 random(seed);
      const auto below = [&random](std::uint64_t bound) {
        return static_cast<std::size_t>(random() % bound);
      };
      const bool small_only = seed % 4 == 1;
      const bool pages_only = seed % 4 == 2;
      const bool with_held = seed % 4 != 3;
      const std::size_t limit = small_only ? 2_MiB : 24_MiB;
      host_pool pool;
      const auto arena = pool.open(limit);

      struct entry {
        host_block block;
        unsigned char value;
        bool held;
      };
      std::vector<entry> entries;
      std::map<std::uintptr_t, std::size_t> places;
      std::size_t live = 0;
      std::size_t held = 0;
      std::size_t extra = 0;

      const auto check_bytes = [](const entry& checked) {
        const auto expected = std::byte{checked.value};
        const auto bytes = checked.block.bytes();
        REQUIRE(bytes.front() == expected);
        REQUIRE(bytes[bytes.size() / 2] == expected);
        REQUIRE(bytes.back() == expected);
      };

      for (int step = 0; step < 6'000; ++step) {
        const auto dice = below(100);
        const auto before = arena->usage();
        const auto sum_before = charged_and_idle(before);
        enum { may_exceed, must_not_grow, keeps_to_limit } sum = keeps_to_limit;
        if (dice < 50) {
          auto size =
              below(10) < 7 || small_only ? 1 + below(8'000) : 1 + below(10) * below(700'000);
          if (pages_only) size = host_arena::footprint((size + page - 1) / page * page);
          const auto footprint = host_arena::footprint(size);
          const bool fits = arena->fits(size);
          if (live + extra == 0) REQUIRE(fits);
          if (live + extra != 0 && live + extra + footprint > limit) REQUIRE_FALSE(fits);
          if (pages_only && live + extra + footprint <= limit) REQUIRE(fits);
          if (!fits) continue;
          entry made{take(*arena, size), static_cast<unsigned char>(step), false};
          const auto at = reinterpret_cast<std::uintptr_t>(made.block.data());
          REQUIRE(at % (size >= 1_MiB ? page : 64) == 0);
          const auto above = places.lower_bound(at);
          if (above != places.end()) REQUIRE(at + footprint <= above->first);
          if (above != places.begin())
            REQUIRE(std::prev(above)->first + std::prev(above)->second <= at);
          places.emplace(at, footprint);
          std::memset(made.block.data(), made.value, size);
          live += footprint;
          if (!pages_only && (before.live == 0 || sum_before > limit)) sum = may_exceed;
          entries.push_back(std::move(made));
        } else if (dice < 90 && !entries.empty()) {
          auto& chosen = entries[below(entries.size())];
          check_bytes(chosen);
          const auto footprint = host_arena::footprint(chosen.block.size());
          places.erase(reinterpret_cast<std::uintptr_t>(chosen.block.data()));
          (chosen.held ? held : live) -= footprint;
          if (!chosen.held) sum = must_not_grow;
          else if (!pages_only) sum = may_exceed;
          std::swap(chosen, entries.back());
          entries.pop_back();
        } else if (dice < 95 && with_held && !entries.empty()) {
          auto& chosen = entries[below(entries.size())];
          chosen.block.detach();
          if (!std::exchange(chosen.held, true)) {
            live -= host_arena::footprint(chosen.block.size());
            held += host_arena::footprint(chosen.block.size());
          }
          sum = must_not_grow;
        } else if (dice < 97) {
          const auto size = below(100'000);
          arena->charge(size);
          extra += size;
          if (!pages_only) sum = may_exceed;
        } else {
          const auto size = below(extra + 1);
          arena->uncharge(size);
          extra -= size;
          sum = must_not_grow;
        }
        if (entries.size() > 1'500 || held > 64_MiB) {
          places.clear();
          entries.clear();
          live = 0;
          held = 0;
          continue;
        }

        const auto usage = arena->usage();
        REQUIRE(usage.live == live);
        REQUIRE(usage.held == held);
        REQUIRE(usage.extra == extra);
        // What cannot be returned is less than a page on each side of a block.
        const auto splinters = (places.size() + 1) * 2 * page;
        const auto most = std::max(limit, live + extra);
        if (sum == keeps_to_limit) REQUIRE(charged_and_idle(usage) <= most);
        if (sum == must_not_grow) REQUIRE(charged_and_idle(usage) <= sum_before);
        if (sum == may_exceed) REQUIRE(charged_and_idle(usage) <= most + splinters);
      }
      for (const auto& checked : entries) check_bytes(checked);
      entries.clear();
      arena->uncharge(extra);
      const auto usage = arena->usage();
      CHECK(usage.live == 0);
      CHECK(usage.held == 0);
      // All in one piece again.
      const auto whole = take(*arena, usage.mapped > 64_MiB ? 64_MiB : usage.mapped);
      CHECK(arena->usage().mapped == usage.mapped);
    }
  }

  TEST_CASE("one limit holds for a stream that admits by it, however blocks are dropped") {
    for (unsigned seed = 1; seed <= 4; ++seed) {
      CAPTURE(seed);
      std::mt19937_64 random(seed);
      host_pool pool;
      constexpr auto limit = 4_MiB;
      const auto arena = pool.open(limit);
      std::vector<host_block> blocks;
      std::size_t largest = 0;
      for (int step = 0; step < 10'000; ++step) {
        const auto size =
            static_cast<std::size_t>(1 + random() % 64 * (random() % 3'000) + random() % 100);
        if (arena->fits(size)) {
          largest = std::max(largest, host_arena::footprint(size));
          blocks.push_back(take(*arena, size));
        } else {
          REQUIRE_FALSE(blocks.empty());  // there is always somebody to wait for
          std::swap(blocks[random() % blocks.size()], blocks.back());
          blocks.pop_back();
        }
        REQUIRE(charged_and_idle(arena->usage()) <= std::max(limit, largest));
      }
    }
  }

  TEST_CASE(
      "threads may allocate, pass on, detach and drop at once: nothing is lost, nothing overlaps") {
    host_pool pool;
    constexpr auto limit = 8_MiB;
    const auto listener = std::make_shared<counting_listener>();
    const auto arena = pool.open(limit, listener);
    struct passed {
      host_block block;
      unsigned char value;
    };
    std::mutex mutex;
    std::vector<passed> shared;
    std::atomic<bool> wrong = false;
    std::vector<std::thread> threads;
    for (unsigned seed = 0; seed < 4; ++seed) {
      threads.emplace_back([&, seed] {
        std::mt19937_64 random(seed);
        for (int step = 0; step < 4'000; ++step) {
          const auto size = static_cast<std::size_t>(random() % 8 == 0 ? 1 + random() % 2'000'000
                                                                       : 1 + random() % 20'000);
          const auto value = static_cast<unsigned char>(random());
          if (random() % 64 == 0) arena->notify_on_release();
          if (arena->fits(size)) {
            auto block = arena->allocate(size);
            if (!block) std::terminate();
            // Both ends only: that is where neighbours would meet.
            block->bytes().front() = std::byte{value};
            block->bytes().back() = std::byte{value};
            const std::lock_guard lock(mutex);
            shared.push_back({*std::move(block), value});
          }
          if (random() % 32 == 0) {
            arena->charge(10'000);
            arena->uncharge(10'000);
          }
          passed got{};
          {
            const std::lock_guard lock(mutex);
            if (shared.size() < 20) continue;
            std::swap(shared[random() % shared.size()], shared.back());
            got = std::move(shared.back());
            shared.pop_back();
          }
          if (got.block.size() > 1 && (got.block.bytes().front() != std::byte{got.value} ||
                                       got.block.bytes().back() != std::byte{got.value})) {
            wrong = true;
          }
          if (random() % 4 == 0) got.block.detach();
        }
      });
    }
    for (auto& thread : threads) thread.join();
    CHECK_FALSE(wrong);
    std::size_t live = 0;
    for (const auto& one : shared) live += host_arena::footprint(one.block.size());
    CHECK(arena->usage().live == live);
    CHECK(arena->usage().held == 0);
    shared.clear();
    CHECK(arena->usage().live == 0);
    const auto whole = take(*arena, 60_MiB);
    CHECK(arena->usage().live == 60_MiB);
    CHECK(arena->usage().idle == 0);
  }
}
