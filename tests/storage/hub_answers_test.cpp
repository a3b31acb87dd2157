#include "storage/hub_answers.hpp"

#include <doctest/doctest.h>

#include <string>

namespace headrace {
namespace {

TEST_SUITE("unit") {
  TEST_CASE("a listing holds files with their real sizes, and no folders") {
    const auto read =
        parse_hub_tree(R"([{"type":"directory","oid":"1","size":0,"path":"sub"},)"
                       R"({"type":"file","oid":"2","size":12,"path":"config.json"},)"
                       R"({"type":"file","oid":"3","size":5000000000,"path":"m.safetensors",)"
                       R"("lfs":{"oid":"s","size":5000000000,"pointerSize":135},"xetHash":"x"}])");
    REQUIRE(read);
    REQUIRE(read->size() == 2);
    CHECK((*read)[0].path == "config.json");
    CHECK((*read)[1].size == 5'000'000'000);
    const auto none = parse_hub_tree("[]");
    REQUIRE(none);
    CHECK(none->empty());
  }

  TEST_CASE("what is no listing or no revision is a protocol error") {
    std::string many = "[";
    for (int i = 0; i <= 10'000; ++i) many += "{},";
    many.back() = ']';
    for (const std::string& body :
         {std::string(), std::string("<html>"), std::string("{}"), std::string("[1]"),
          std::string(R"([{"type":"file","path":"a"}])"),
          std::string(R"([{"type":"file","size":1}])"),
          std::string(R"([{"type":"file","size":-1,"path":"a"}])"), many}) {
      CAPTURE(body.substr(0, 50));
      const auto refused = parse_hub_tree(body);
      REQUIRE_FALSE(refused);
      CHECK(refused.error().kind() == errc::protocol_error);
    }
    for (const char* const body : {"", "[]", "{}", R"({"sha":"main"})", R"({"sha":5})",
                                   R"({"sha":"../../../../../../../../../../../../xxx"})"}) {
      CAPTURE(body);
      const auto refused = parse_hub_commit(body);
      REQUIRE_FALSE(refused);
      CHECK(refused.error().kind() == errc::protocol_error);
    }
    CHECK(parse_hub_commit(R"({"sha":"0123456789abcdef0123456789abcdef01234567","siblings":[]})"));
  }

  TEST_CASE("the next page is found among the links") {
    CHECK(next_link(R"(<https://h/a?cursor=x%3D>; rel="next")") == "https://h/a?cursor=x%3D");
    CHECK(next_link(R"(<https://h/1>; rel="prev", </2>;title="a" ; REL=next)") == "/2");
    CHECK_FALSE(next_link(R"(<https://h/1>; rel="prev")"));
    CHECK_FALSE(next_link(""));
    CHECK_FALSE(next_link("<https://h/1"));
    CHECK_FALSE(next_link("rel=next"));
    CHECK_FALSE(next_link("<a>; title=\"rel=next"));
  }
}

}  // namespace
}  // namespace headrace
