#include <headrace/memory/host_block.hpp>

#include <headrace/base/sizes.hpp>
#include <headrace/memory/host_pool.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <thread>
#include <type_traits>
#include <utility>

#if defined(__SANITIZE_ADDRESS__)
#define HEADRACE_TEST_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define HEADRACE_TEST_ASAN 1
#endif
#endif

#ifdef HEADRACE_TEST_ASAN
#include <sanitizer/asan_interface.h>
#endif

using namespace headrace;

namespace {

[[nodiscard]] host_block take(host_arena& arena, std::size_t size) {
  auto block = arena.allocate(size);
  REQUIRE(block.has_value());
  return *std::move(block);
}

[[nodiscard]] std::uintptr_t address(const host_block& block) {
  return reinterpret_cast<std::uintptr_t>(block.data());
}

}  // namespace

TEST_SUITE("unit") {
  TEST_CASE("a block is moved, never copied, and moving throws nothing") {
    CHECK_FALSE(std::is_copy_constructible_v<host_block>);
    CHECK_FALSE(std::is_copy_assignable_v<host_block>);
    CHECK(std::is_nothrow_move_constructible_v<host_block>);
    CHECK(std::is_nothrow_move_assignable_v<host_block>);
  }

  TEST_CASE("a block without memory is empty and may be dropped and detached") {
    host_block block;
    CHECK(block.data() == nullptr);
    CHECK(block.size() == 0);
    CHECK(block.bytes().empty());
    block.detach();
    block.reset();
  }

  TEST_CASE("a block has the size asked for, and 64 bytes alignment, a page from 1 MiB on") {
    host_pool pool;
    const auto arena = pool.open(1_GiB);
    const auto odd = take(*arena, 1);  // so that what follows does not lie on a page by chance
    for (const std::size_t size :
         std::array<std::size_t, 9>{1, 63, 64, 65, 4095, 4097, 1_MiB - 1, 1_MiB, 3_MiB + 5}) {
      auto block = take(*arena, size);
      CHECK(block.size() == size);
      CHECK(block.bytes().size() == size);
      CHECK(block.bytes().data() == block.data());
      CHECK(address(block) % (size >= 1_MiB ? 4096 : 64) == 0);
      std::ranges::fill(block.bytes(), std::byte{0x5a});
      CHECK(block.bytes().back() == std::byte{0x5a});
    }
  }

  TEST_CASE("moving a block leaves the source empty and drops what the target held") {
    host_pool pool;
    const auto arena = pool.open(1_GiB);
    auto one = take(*arena, 100);
    auto* const data = one.data();
    auto two = take(*arena, 1000);
    CHECK(arena->usage().live == 128 + 1024);
    two = std::move(one);
    CHECK(arena->usage().live == 128);
    CHECK(two.data() == data);
    CHECK(two.size() == 100);
    CHECK(one.data() == nullptr);  // NOLINT: that is the question
    CHECK(one.size() == 0);
    host_block three(std::move(two));
    CHECK(three.data() == data);
    CHECK(two.data() == nullptr);  // NOLINT
    three.reset();
    CHECK(three.data() == nullptr);
    CHECK(three.size() == 0);
    three.reset();
    CHECK(arena->usage().live == 0);
  }

  TEST_CASE(
      "a detached block is the user's own: not charged, the same bytes, returned when dropped") {
    host_pool pool;
    const auto arena = pool.open(1_MiB);
    auto block = take(*arena, 1000);
    std::ranges::fill(block.bytes(), std::byte{7});
    block.detach();
    CHECK(arena->usage().live == 0);
    CHECK(arena->usage().held == 1024);
    block.detach();
    CHECK(arena->usage().held == 1024);
    CHECK(block.size() == 1000);
    CHECK(std::ranges::all_of(block.bytes(), [](std::byte byte) { return byte == std::byte{7}; }));
    const auto* const data = block.data();
    block.reset();
    CHECK(arena->usage().held == 0);
    CHECK(take(*arena, 1000).data() == data);
  }

  TEST_CASE(
      "a block outlives its arena and its pool, and is readable and writable until it is dropped") {
    for (const std::size_t size : {std::size_t{1000}, 3_MiB}) {
      host_block kept;
      host_block detached;
      {
        host_pool pool;
        const auto arena = pool.open(16_MiB);
        kept = take(*arena, size);
        detached = take(*arena, size);
        detached.detach();
        std::ranges::fill(kept.bytes(), std::byte{1});
        std::ranges::fill(detached.bytes(), std::byte{2});
      }
      CHECK(std::ranges::all_of(kept.bytes(), [](std::byte byte) { return byte == std::byte{1}; }));
      kept.detach();
      kept.reset();
      CHECK(std::ranges::all_of(detached.bytes(),
                                [](std::byte byte) { return byte == std::byte{2}; }));
      std::ranges::fill(detached.bytes(), std::byte{3});
    }
  }

  TEST_CASE("a block may be dropped on another thread, also as the last of its arena") {
    host_pool pool;
    auto arena = pool.open(16_MiB);
    auto block = take(*arena, 1_MiB);
    auto last = take(*arena, 1_MiB);
    std::thread([dropped = std::move(block)] {}).join();
    CHECK(arena->usage().live == 1_MiB);
    arena.reset();
    std::thread([dropped = std::move(last)]() mutable {
      std::ranges::fill(dropped.bytes(), std::byte{1});
      dropped.reset();
    }).join();
    CHECK(pool.usage().held == 0);
  }

#ifdef HEADRACE_TEST_ASAN
  TEST_CASE("AddressSanitizer sees the use of a dropped block, and of what lies beyond one") {
    host_pool pool;
    const auto arena = pool.open(16_MiB);
    for (const std::size_t size : {std::size_t{13}, std::size_t{1000}, 2_MiB}) {
      auto block = take(*arena, size);
      auto* const data = block.data();
      CHECK(__asan_region_is_poisoned(data, size) == nullptr);
      CHECK(__asan_address_is_poisoned(data + size) != 0);
      block.detach();
      CHECK(__asan_region_is_poisoned(data, size) == nullptr);
      block.reset();
      CHECK(__asan_address_is_poisoned(data) != 0);
      CHECK(__asan_address_is_poisoned(data + size / 2) != 0);
      CHECK(__asan_address_is_poisoned(data + size - 1) != 0);
    }
  }
#endif
}
