#include "storage/json_answer.hpp"

#include <doctest/doctest.h>

#include <string>

namespace headrace {
namespace {

TEST_SUITE("unit") {
  TEST_CASE("members are read where they are of the kind that is wanted") {
    const auto read = detail::parse_json_object(
        R"({"a":"text","n":12,"s":"34","neg":-1,"f":1.5,"big":18446744073709551615,"o":{"x":"y"}})");
    REQUIRE(read);
    CHECK(detail::string_of(*read, "a") == "text");
    CHECK(detail::string_of(*read, "n").empty());
    CHECK(detail::string_of(*read, "none").empty());
    CHECK(detail::integer_of(*read, "n") == 12);
    CHECK(detail::integer_of(*read, "s") == 34);
    CHECK(detail::integer_of(*read, "big") == 18446744073709551615U);
    for (const char* const name : {"neg", "f", "a", "o", "none"}) {
      CAPTURE(name);
      CHECK_FALSE(detail::integer_of(*read, name));
    }
    REQUIRE(detail::object_of(*read, "o") != nullptr);
    CHECK(detail::string_of(*detail::object_of(*read, "o"), "x") == "y");
    CHECK(detail::object_of(*read, "a") == nullptr);
  }

  TEST_CASE("what is no JSON, no object or nests too deep is nothing") {
    for (const std::string& text :
         {std::string(), std::string("{"), std::string("[]"), std::string("\"a\""),
          std::string("{} {}"), std::string("<html>"), std::string("{\"a\":\"\xff\"}"),
          "{\"a\":" + std::string(40, '[') + std::string(40, ']') + "}"}) {
      CAPTURE(text);
      CHECK_FALSE(detail::parse_json_object(text));
    }
    CHECK(detail::parse_json("[1]"));
    CHECK_FALSE(detail::parse_json(std::string(100'000, '[')));
  }
}

}  // namespace
}  // namespace headrace
