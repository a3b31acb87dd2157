#include "storage/shell_words.hpp"

#include <doctest/doctest.h>

#include <string>
#include <vector>

namespace headrace {
namespace {

using words = std::vector<std::string>;

TEST_SUITE("unit") {
  TEST_CASE("words are split as a shell splits them, and nothing is expanded") {
    const std::vector<std::pair<std::string, words>> cases = {
        {"", {}},
        {" \t\n", {}},
        {"a b  c", {"a", "b", "c"}},
        {R"(/opt/a\ b --x='c "d"' "e'f")", {"/opt/a b", "--x=c \"d\"", "e'f"}},
        {R"("a\"b\\c\d")", {"a\"b\\c\\d"}},
        {R"('a\b')", {"a\\b"}},
        {"'' \"\"", {"", ""}},
        {"a'b'\"c\"d", {"abcd"}},
        {"$HOME *.txt #x `id` ~", {"$HOME", "*.txt", "#x", "`id`", "~"}},
    };
    for (const auto& [text, expected] : cases) {
      CAPTURE(text);
      const auto split = split_shell_words(text);
      REQUIRE(split.has_value());
      CHECK(*split == expected);
    }
  }

  TEST_CASE("a quotation or an escape without an end is no text of words") {
    for (const auto* const text : {"'a", "\"a", "a\\", "\"a\\\"", "a 'b c"}) {
      CAPTURE(text);
      CHECK_FALSE(split_shell_words(text).has_value());
    }
  }
}

}  // namespace
}  // namespace headrace
