#include "storage/hub_address.hpp"

#include <doctest/doctest.h>

#include <string>
#include <vector>

namespace headrace {
namespace {

result<hub_address> parse(const std::string& text) {
  const auto parsed = uri::parse(text);
  if (!parsed) return failure{parsed.error()};
  return parse_hub_address(*parsed);
}

TEST_SUITE("unit") {
  TEST_CASE("a repository is read with its revision, its folder and its file") {
    struct expected {
      const char* text;
      const char* repository;
      const char* revision;
      const char* folder;
      const char* single;
    };
    for (const auto& [text, repository, revision, folder, single] : std::vector<expected>{
             {"hf://org/repo", "org/repo", "main", "", ""},
             {"hf://org/repo/", "org/repo", "main", "", ""},
             {"hf://Org-1/re.po_2@v1.0", "Org-1/re.po_2", "v1.0", "", ""},
             {"hf://org/repo@v1/", "org/repo", "v1", "", ""},
             {"hf://org/repo/sub/dir/", "org/repo", "main", "sub/dir", ""},
             {"hf://org/repo@refs%2Fpr%2F1/sub", "org/repo", "refs/pr/1", "sub", ""},
             {"hf://org/repo@refs/pr/12/sub", "org/repo", "refs/pr/12", "sub", ""},
             {"hf://org/repo@refs/convert/bf16", "org/repo", "refs/convert/bf16", "", ""},
             {"hf://org/repo@feature%2Fx%25y/a@b/c d", "org/repo", "feature/x%y", "a@b/c d", ""},
             {"hf://org/repo/model.safetensors", "org/repo", "main", "", "model.safetensors"},
             {"hf://org/repo@dev/unet/x.safetensors", "org/repo", "dev", "unet", "x.safetensors"},
         }) {
      CAPTURE(text);
      const auto read = parse(text);
      REQUIRE_MESSAGE(read, (read ? "" : read.error().what()));
      CHECK(read->repository == repository);
      CHECK(read->revision == revision);
      CHECK(read->folder == folder);
      CHECK(read->single == single);
    }
  }

  TEST_CASE("what names no repository says what was expected") {
    for (const char* const text :
         {"hf://org", "hf://org/", "hf://org//repo", "hf://org/re po", "hf://.org/repo",
          "hf://org/-repo", "hf://org/re..po", "hf://org/repo@", "hf://org/repo@/sub",
          "hf://org/repo@%2", "hf://org/repo@a%00b", "hf://org/repo@a%20b", "hf://org/repo@a..b",
          "hf://org/repo@%2Fx", "hf://org/repo/a//b", "hf://org/repo/../other", "hf://org/repo/./a",
          "hf://hf_secret@org/repo", "hf://org@main/repo"}) {
      CAPTURE(text);
      const auto refused = parse(text);
      REQUIRE_FALSE(refused);
      CHECK(refused.error().kind() == errc::invalid_request);
      const std::string said = refused.error().what();
      CHECK(said.find("expected hf://org/repo") != std::string::npos);
      CHECK(said.find("hf_secret") == std::string::npos);
    }
    CHECK(parse("hf://datasets/org/data").error().kind() == errc::unsupported);
    CHECK(parse("hf://spaces/org/app").error().kind() == errc::unsupported);
  }

  TEST_CASE("a full commit is told from a branch") {
    CHECK(is_commit("0123456789abcdef0123456789abcdef01234567"));
    CHECK_FALSE(is_commit("0123456789abcdef0123456789abcdef0123456"));
    CHECK_FALSE(is_commit("0123456789ABCDEF0123456789abcdef01234567"));
    CHECK_FALSE(is_commit("main"));
  }
}

}  // namespace
}  // namespace headrace
