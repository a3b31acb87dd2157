#include <headrace/memory/host_pool.hpp>

#include <headrace/base/sizes.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <thread>
#include <utility>
#include <vector>

using namespace headrace;

namespace {

[[nodiscard]] host_block take(host_arena& arena, std::size_t size) {
  auto block = arena.allocate(size);
  REQUIRE(block.has_value());
  return *std::move(block);
}

}  // namespace

TEST_SUITE("unit") {
  TEST_CASE("the next stream gets the warm memory of the one that ended") {
    host_pool pool;
    const std::byte* data = nullptr;
    {
      const auto arena = pool.open(64_MiB);
      data = take(*arena, 20_MiB).data();
    }
    CHECK(pool.usage().idle == 20_MiB);
    CHECK(pool.usage().live == 0);
    const auto arena = pool.open(64_MiB);
    CHECK(arena->usage().idle == 20_MiB);
    const auto block = take(*arena, 20_MiB);
    CHECK(block.data() == data);
    CHECK(arena->usage().idle == 0);
  }

  TEST_CASE("streams that are open at the same time have arenas of their own") {
    host_pool pool;
    const auto one = pool.open(64_MiB);
    const auto two = pool.open(32_MiB);
    CHECK(one->limit() == 64_MiB);
    CHECK(two->limit() == 32_MiB);
    const auto block = take(*one, 10_MiB);
    CHECK(two->usage().live == 0);
    CHECK(two->usage().mapped == 0);
    CHECK(pool.usage().live == 10_MiB);
    CHECK(pool.usage().mapped == one->usage().mapped);
  }

  TEST_CASE("ended streams leave idle bytes up to the pool's bound, all of them together") {
    host_pool pool(24_MiB);
    auto one = pool.open(64_MiB);
    auto two = pool.open(64_MiB);
    auto three = pool.open(64_MiB);
    take(*one, 40_MiB).reset();
    take(*two, 16_MiB).reset();
    take(*three, 8_MiB).reset();
    CHECK(pool.usage().idle == 64_MiB);
    one.reset();
    CHECK(pool.usage().idle == 24_MiB + 24_MiB);
    two.reset();
    CHECK(pool.usage().idle == 16_MiB + 8_MiB);
    three.reset();
    CHECK(pool.usage().idle == 16_MiB + 8_MiB);
    CHECK(pool.open(64_MiB)->usage().idle == 8_MiB);
  }

  TEST_CASE("a pool without an idle bound keeps nothing") {
    host_pool pool(0);
    auto arena = pool.open(64_MiB);
    take(*arena, 40_MiB).reset();
    arena.reset();
    CHECK(pool.usage().idle == 0);
    CHECK(pool.usage().mapped == 0);
  }

  TEST_CASE("trimming the pool returns all idle memory, of ended and of open streams") {
    host_pool pool;
    {
      const auto ended = pool.open(64_MiB);
      take(*ended, 10_MiB).reset();
    }
    // The first of two takes the warm memory, so that the second begins cold.
    const auto warm = pool.open(64_MiB);
    const auto open = pool.open(64_MiB);
    take(*open, 10_MiB).reset();
    auto held = take(*open, 2_MiB);
    CHECK(pool.usage().idle == 18_MiB);
    pool.trim();
    CHECK(pool.usage().idle == 0);
    CHECK(pool.usage().live == 2_MiB);
    std::ranges::fill(held.bytes(), std::byte{1});
    const auto again = take(*open, 10_MiB);
    CHECK(open->usage().live == 12_MiB);
  }

  TEST_CASE("trimming the pool unmaps the arenas of ended streams") {
    host_pool pool;
    {
      const auto ended = pool.open(64_MiB);
      take(*ended, 10_MiB).reset();
    }
    CHECK(pool.usage().mapped != 0);
    pool.trim();
    CHECK(pool.usage().mapped == 0);
  }

  TEST_CASE("a stream with a small limit does not take over more idle bytes than that") {
    host_pool pool;
    {
      const auto ended = pool.open(64_MiB);
      take(*ended, 40_MiB).reset();
    }
    const auto arena = pool.open(16_MiB);
    CHECK(arena->usage().idle == 16_MiB);
  }

  TEST_CASE("a user who holds the last tensor does not make the next stream begin cold") {
    host_pool pool;
    auto first = pool.open(64_MiB);
    auto held = take(*first, 4_MiB);
    take(*first, 20_MiB).reset();
    held.detach();
    first.reset();
    const auto second = pool.open(64_MiB);
    CHECK(second->usage().idle == 20_MiB);
    CHECK(second->usage().live == 0);
    CHECK(second->usage().held == 4_MiB);
    held.reset();
    CHECK(second->usage().idle == 24_MiB);
    CHECK(second->usage().live == 0);
  }

  TEST_CASE("blocks left over by a stream are charged to nobody, nor to the arena's next stream") {
    host_pool pool;
    auto first = pool.open(64_MiB);
    auto left_over = take(*first, 4_MiB);
    take(*first, 20_MiB).reset();
    first->close();
    CHECK(pool.usage().live == 0);
    CHECK(pool.usage().held == 4_MiB);
    const auto second = pool.open(64_MiB);
    const auto own = take(*second, 6_MiB);
    CHECK(second->usage().live == 6_MiB);
    left_over.detach();
    CHECK(second->usage().live == 6_MiB);
    left_over.reset();
    CHECK(second->usage().live == 6_MiB);
    CHECK(second->usage().held == 0);
  }

  TEST_CASE("what is dropped after its stream has ended goes back to the system") {
    host_pool pool;
    auto arena = pool.open(256_MiB);
    std::vector<host_block> large;
    std::vector<host_block> small;
    for (int i = 0; i < 20; ++i) large.push_back(take(*arena, 3_MiB));
    for (int i = 0; i < 2000; ++i) small.push_back(take(*arena, 10'000));
    for (auto& block : large) block.detach();
    arena.reset();
    const auto stuck = pool.usage().idle;
    CHECK(stuck < 4096);
    const auto held = pool.usage().held;
    CHECK(held == 20 * 3_MiB + 2000 * host_arena::footprint(10'000));

    for (std::size_t i = 0; i + 1 < large.size(); ++i) {
      large[i].reset();
      CHECK(pool.usage().idle == stuck);
    }
    // Every other one: no neighbours coalesce, and what stays is what shares a page with a held
    // one.
    std::size_t holes = 0;
    for (std::size_t i = 0; i < small.size(); i += 2) {
      small[i].reset();
      ++holes;
      CHECK(pool.usage().idle <= 2_MiB + holes * 2 * 4096 + stuck);
    }
    for (auto& block : small) block.reset();
    CHECK(pool.usage().idle <= 2_MiB + stuck + 2 * 4096);
    CHECK(pool.usage().held == 3_MiB);
    large.back().reset();
    CHECK(pool.usage().mapped == 0);
  }

  TEST_CASE("a closed arena refuses, and closing twice or charging afterwards does no harm") {
    host_pool pool;
    const auto arena = pool.open(64_MiB);
    take(*arena, 4_MiB).reset();
    arena->charge(1_MiB);
    arena->close();
    arena->close();
    CHECK_FALSE(arena->fits(1));
    const auto block = arena->allocate(1);
    REQUIRE_FALSE(block.has_value());
    CHECK(block.error().kind() == errc::cancelled);
    arena->charge(1_MiB);
    arena->uncharge(5_MiB);
    arena->notify_on_release();
    CHECK(arena->usage().extra == 0);

    // The arena's memory is another stream's by now: the old handle has no part in it.
    const auto next = pool.open(64_MiB);
    const auto own = take(*next, 1_MiB);
    arena->charge(1_MiB);
    arena->close();
    CHECK(arena->usage().live == 0);
    CHECK(next->usage().live == 1_MiB);
    CHECK(next->usage().extra == 0);
    CHECK_FALSE(arena->fits(1));
  }

  TEST_CASE("streams may open, allocate, hold and end on many threads at once") {
    host_pool pool(32_MiB);
    std::vector<std::thread> threads;
    for (unsigned seed = 0; seed < 4; ++seed) {
      threads.emplace_back([&pool, seed] {
        std::vector<host_block> held;
        for (unsigned round = 0; round < 30; ++round) {
          const auto arena = pool.open(8_MiB);
          for (unsigned i = 0; i < 20; ++i) {
            auto block = arena->allocate((seed + round * 7 + i * 13) % 5 * 500'000 + 100);
            if (!block) std::terminate();
            std::ranges::fill(block->bytes().first(100),
                              std::byte{static_cast<unsigned char>(seed)});
            if (i % 10 == 3) held.push_back(*std::move(block));
          }
          if (held.size() > 10) held.erase(held.begin(), held.begin() + 8);
          if (round % 8 == 7) pool.trim();
        }
        for (const auto& block : held) {
          if (block.bytes()[99] != std::byte{static_cast<unsigned char>(seed)}) std::terminate();
        }
      });
    }
    for (auto& thread : threads) thread.join();
    const auto usage = pool.usage();
    CHECK(usage.live == 0);
    CHECK(usage.held == 0);
    CHECK(usage.idle <= 32_MiB + 4 * 2_MiB);
    pool.trim();
    CHECK(pool.usage().mapped == 0);
  }
}
