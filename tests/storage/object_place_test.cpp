#include "storage/object_place.hpp"

#include <doctest/doctest.h>

#include <string>

namespace headrace {
namespace {

TEST_SUITE("unit") {
  TEST_CASE("a key is a prefix, or the one object that its end names") {
    struct expected {
      std::string key;
      std::string prefix;
      std::string single;
    };
    for (const auto& [key, prefix, single] : {
             expected{"", "", ""},
             expected{"a", "a/", ""},
             expected{"a/b//", "a/b/", ""},
             expected{"a//b", "a//b/", ""},
             expected{"x.safetensors", "", "x.safetensors"},
             expected{"a/x.safetensors", "a/", "x.safetensors"},
             expected{"a/x.safetensors/", "a/", "x.safetensors"},
             expected{"a/x.safetensors.bak", "a/x.safetensors.bak/", ""},
         }) {
      CAPTURE(key);
      const auto place = object_place::of(key);
      CHECK(place.prefix == prefix);
      CHECK(place.single == single);
    }
  }

  TEST_CASE("names are relative to the prefix, and only what lies under it has one") {
    const auto place = object_place::of("a/b");
    CHECK(place.name_of("a/b/c") == "c");
    CHECK(place.name_of("a/b/c/d") == "c/d");
    CHECK_FALSE(place.name_of("a/b/"));
    CHECK_FALSE(place.name_of("a/b"));
    CHECK_FALSE(place.name_of("a/bc"));
    CHECK(object_place::of("").name_of("a") == "a");
  }
}

}  // namespace
}  // namespace headrace
