#include "storage/entity_tag.hpp"

#include <doctest/doctest.h>

#include <string>

using headrace::entity_tag;
using headrace::parse_entity_tag;

TEST_SUITE("unit") {
  TEST_CASE("strong and weak entity tags are told apart and keep their quotes") {
    CHECK(parse_entity_tag("\"abc\"") == entity_tag{"\"abc\"", false});
    CHECK(parse_entity_tag("W/\"abc\"") == entity_tag{"\"abc\"", true});
    CHECK(parse_entity_tag("\"\"") == entity_tag{"\"\"", false});
    CHECK(parse_entity_tag(" \"a-2!#~\xE6\" ") == entity_tag{"\"a-2!#~\xE6\"", false});
    CHECK(parse_entity_tag("\"d41d8cd98f00b204e9800998ecf8427e-17\"")->text() ==
          "\"d41d8cd98f00b204e9800998ecf8427e-17\"");
    CHECK(parse_entity_tag("W/\"x\"")->text() == "W/\"x\"");
  }

  TEST_CASE("what is not quoted, or holds quotes, spaces or control characters, is no entity tag") {
    for (const auto* text :
         {"", "abc", "\"", "\"abc", "abc\"", "w/\"abc\"", "W/", "W/abc", "W/ \"abc\"", "\"a\"b\"",
          "\"a b\"", "\"a\tb\"", "\"a\r\nb\"", "\"a\x7f\"", "\"a\", \"b\"", "*"}) {
      CAPTURE(std::string(text));
      CHECK_FALSE(parse_entity_tag(text).has_value());
    }
  }
}
