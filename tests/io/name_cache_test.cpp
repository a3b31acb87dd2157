#include "io/name_cache.hpp"

#include <doctest/doctest.h>

#include <chrono>
#include <string>
#include <vector>

using namespace headrace;
using namespace std::chrono_literals;
using detail::name_cache;

namespace {

const steady_time start{};

std::vector<endpoint> address(const char* literal) { return {*endpoint::from_literal(literal, 0)}; }

}  // namespace

TEST_SUITE("unit") {
  TEST_CASE("a name is believed as long as its server says, a second at least, a minute at most") {
    struct lifetime {
      std::chrono::seconds told;
      std::chrono::seconds kept;
    };
    for (const auto& [told, kept] : {lifetime{30s, 30s}, lifetime{0s, 1s}, lifetime{-7s, 1s},
                                     lifetime{1s, 1s}, lifetime{61s, 60s}, lifetime{86'400s, 60s},
                                     lifetime{std::chrono::seconds(1LL << 31), 60s}}) {
      CAPTURE(told.count());
      name_cache names;
      names.keep("a.test", address("192.0.2.1"), told, start);
      const auto* known = names.find("a.test", start + kept - 1ns);
      REQUIRE(known != nullptr);
      CHECK(*known == address("192.0.2.1"));
      CHECK(names.find("a.test", start + kept) == nullptr);
      CHECK(names.size() == 0);
    }
  }

  TEST_CASE("a later answer takes the place of an earlier one, and a name can be forgotten") {
    name_cache names;
    names.keep("a.test", address("192.0.2.1"), 60s, start);
    names.keep("a.test", address("192.0.2.2"), 10s, start + 1s);
    names.keep("b.test", address("192.0.2.3"), 60s, start);
    REQUIRE(names.find("a.test", start + 2s) != nullptr);
    CHECK(*names.find("a.test", start + 2s) == address("192.0.2.2"));
    CHECK(names.find("a.test", start + 11s) == nullptr);
    names.forget("b.test");
    names.forget("c.test");
    CHECK(names.find("b.test", start) == nullptr);
  }

  TEST_CASE("there are never too many names: the one that would go first makes room") {
    name_cache names;
    for (std::size_t at = 0; at < name_cache::most_names; ++at) {
      const auto lifetime = std::chrono::seconds(at == 100 ? 5 : 50);
      names.keep("name-" + std::to_string(at), address("192.0.2.1"), lifetime, start);
    }
    names.keep("name-7", address("192.0.2.7"), 50s, start);
    CHECK(names.size() == name_cache::most_names);
    CHECK(names.find("name-100", start) != nullptr);
    names.keep("one-more", address("192.0.2.2"), 50s, start);
    CHECK(names.size() == name_cache::most_names);
    CHECK(names.find("name-100", start) == nullptr);
    CHECK(names.find("one-more", start) != nullptr);
  }
}
