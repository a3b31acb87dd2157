#include "storage/object_version.hpp"

#include <doctest/doctest.h>

#include <string>

namespace headrace {
namespace {

object_version version(std::uint64_t size, const char* etag = nullptr, std::string modified = {}) {
  object_version made;
  made.size = size;
  if (etag != nullptr) made.etag = parse_entity_tag(etag);
  made.last_modified = std::move(modified);
  return made;
}

TEST_SUITE("unit") {
  TEST_CASE("a strong tag decides, next to the size") {
    const auto pin = version(10, "\"a\"", "Monday");
    CHECK(pin.strong_tag() != nullptr);
    CHECK(pin.difference(version(10, "\"a\"", "Monday")).empty());
    CHECK(pin.difference(version(10, "\"a\"", "Tuesday")).empty());
    CHECK_FALSE(pin.difference(version(11, "\"a\"", "Monday")).empty());
    CHECK_FALSE(pin.difference(version(10, "\"b\"", "Monday")).empty());
    CHECK_FALSE(pin.difference(version(10, "W/\"a\"", "Monday")).empty());
    CHECK_FALSE(pin.difference(version(10, nullptr, "Monday")).empty());
  }

  TEST_CASE("a generation decides before any tag") {
    auto pin = version(10, "\"a\"");
    pin.generation = "7";
    auto same = version(10, "\"b\"");
    CHECK_FALSE(pin.difference(same).empty());
    same.generation = "7";
    CHECK(pin.difference(same).empty());
    same.generation = "8";
    CHECK(pin.difference(same).find("generation") != std::string::npos);
    same.generation = "7";
    same.size = 11;
    CHECK_FALSE(pin.difference(same).empty());
  }

  TEST_CASE("without a strong tag everything that both know has to agree") {
    const auto weak = version(10, "W/\"a\"", "Monday");
    CHECK(weak.strong_tag() == nullptr);
    CHECK(weak.difference(version(10, "W/\"a\"", "Monday")).empty());
    CHECK_FALSE(weak.difference(version(10, "W/\"b\"", "Monday")).empty());
    CHECK_FALSE(weak.difference(version(10, "W/\"a\"", "Tuesday")).empty());
    CHECK_FALSE(weak.difference(version(9, "W/\"a\"", "Monday")).empty());
    CHECK(version(10).difference(version(10)).empty());
    CHECK_FALSE(version(10).difference(version(11)).empty());
  }
}

}  // namespace
}  // namespace headrace
