#include <headrace/safetensors/index.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <random>
#include <string>

using namespace headrace;

namespace {

std::string message_of(std::string_view json) {
  const auto parsed = parse_index(json);
  REQUIRE_FALSE(parsed);
  CHECK(parsed.error().kind() == errc::invalid_safetensors);
  return parsed.error().message();
}

std::string with_file(std::string_view name) {
  return R"({"weight_map":{"t":")" + std::string(name) + R"("}})";
}

void check_invariants(const index& parsed) {
  CHECK(std::ranges::is_sorted(parsed.files));
  CHECK(std::ranges::adjacent_find(parsed.files) == parsed.files.end());
  CHECK(std::ranges::is_sorted(parsed.tensors, {}, &index::entry::tensor));
  std::vector<bool> used(parsed.files.size());
  for (const auto& entry : parsed.tensors) {
    REQUIRE(entry.file < parsed.files.size());
    used[entry.file] = true;
    CHECK(parsed.find(entry.tensor) == entry.file);
  }
  CHECK(std::ranges::find(used, false) == used.end());
}

}  // namespace

TEST_SUITE("unit") {
  TEST_CASE("an index gives the sorted files and the file of every tensor") {
    const auto parsed = parse_index(R"({
      "metadata": {"total_size": 988097536, "nested": [1.5, null, {"weight_map": {"no": 1}}]},
      "weight_map": {
        "lm_head.weight": "model-00002-of-00002.safetensors",
        "model.embed_tokens.weight": "model-00001-of-00002.safetensors",
        "model.norm.weight": "model-00002-of-00002.safetensors"
      },
      "later": true
    })");
    REQUIRE(parsed);
    check_invariants(*parsed);
    CHECK(parsed->files == std::vector<std::string>{"model-00001-of-00002.safetensors",
                                                    "model-00002-of-00002.safetensors"});
    CHECK(parsed->tensors.size() == 3);
    CHECK(parsed->find("lm_head.weight") == 1U);
    CHECK(parsed->find("model.embed_tokens.weight") == 0U);
    CHECK_FALSE(parsed->find("no"));
    CHECK_FALSE(parsed->find(""));
    CHECK_FALSE(parsed->find("zzz"));
  }

  TEST_CASE("an index of no tensors has no files") {
    const auto parsed = parse_index(R"({"weight_map":{}})");
    REQUIRE(parsed);
    CHECK(parsed->files.empty());
    CHECK(parsed->tensors.empty());
    CHECK_FALSE(parsed->find("a"));
  }

  TEST_CASE("names are unescaped, and any text names a tensor") {
    const auto parsed =
        parse_index(R"({"weight_m\u0061p":{"":"a","\u0000":"\u00e9","x\n\"/..":"a"}})");
    REQUIRE(parsed);
    check_invariants(*parsed);
    CHECK(parsed->files == std::vector<std::string>{"a", "é"});
    CHECK(parsed->find(std::string_view("\0", 1)) == 1U);
    CHECK(parsed->find("x\n\"/..") == 0U);
  }

  TEST_CASE("a plain relative file name is taken") {
    for (const auto* name :
         {"model.safetensors", "sub/model.safetensors", "a/b/c", "..a", "a..", "...", "a/...",
          ".hidden", "a b", "a%2e%2e", "~", "é", "ü/中", "a:b", "a?b#c"}) {
      CAPTURE(name);
      const auto parsed = parse_index(with_file(name));
      REQUIRE(parsed);
      CHECK(parsed->files == std::vector<std::string>{name});
    }
  }

  TEST_CASE("a file name that could lead elsewhere is refused, with the tensor that has it") {
    for (const auto* name :
         {"",           "/",       "/etc/passwd", "//host/share", "..",
          "../x",       "a/..",    "a/../b",      "a/../../b",    ".",
          "./a",        "a/.",     "a/./b",       "a/",           "a//b",
          "a\\\\b",     "..\\\\b", "\\u0000",     "a\\u0000b",    "a\\nb",
          "\\u001b[0m", "\\u007f", "\\u009b0m",   "\\u0080",      "https://host/x"}) {
      CAPTURE(name);
      const auto message = message_of(with_file(name));
      CHECK(message.find(R"(tensor "t")") != std::string::npos);
      CHECK(message.find('\n') == std::string::npos);
    }
    CHECK(
        message_of(with_file("../x")) ==
        R"(the index: "weight_map": the file of tensor "t", "../x", has a component that is . or ..; )"
        "it must be a plain relative path");
  }

  TEST_CASE("a tensor or a weight map that is there twice is refused") {
    CHECK(message_of(R"({"weight_map":{"t":"a","u":"a","t":"b"}})") ==
          R"(the index: "weight_map": tensor "t" is there twice)");
    CHECK(message_of(R"({"weight_map":{"t":"a","\u0074":"a"}})").find("twice") !=
          std::string::npos);
    CHECK(message_of(R"({"weight_map":{},"weight_map":{}})") ==
          R"(the index: "weight_map" is there twice)");
  }

  TEST_CASE("what is no index is refused with what was expected") {
    CHECK(message_of({}).find("not JSON") != std::string::npos);
    CHECK(message_of("{}").find(R"(no "weight_map")") != std::string::npos);
    CHECK(message_of(R"({"a":{"weight_map":{}}})").find(R"(no "weight_map")") != std::string::npos);
    for (const auto* json : {"[]", "null", "1", R"("weight_map")", R"([{"weight_map":{}}])"}) {
      CAPTURE(json);
      CHECK(message_of(json).find("must be a JSON object") != std::string::npos);
    }
    for (const auto* value : {"null", "1", "[]", R"("a")", R"([{"t":"a"}])"}) {
      CAPTURE(value);
      CHECK(message_of(std::string(R"({"weight_map":)") + value + "}")
                .find(R"("weight_map" must be an object)") != std::string::npos);
    }
    for (const auto* value : {"null", "1", "1.5", "true", "[]", "{}", R"(["a"])", R"({"t":"a"})"}) {
      CAPTURE(value);
      CHECK(message_of(std::string(R"({"weight_map":{"t":)") + value + "}}")
                .find(R"(tensor "t" must be a string)") != std::string::npos);
    }
    for (const auto* json : {"", " ", "{", R"({"weight_map":{}}x)", R"({"weight_map":{"t":"a",}})",
                             R"({"weight_map":{"t":"\ud83d"}})", "\xef\xbb\xbf{\"weight_map\":{}}",
                             R"({"weight_map":{},"a":NaN})"}) {
      CAPTURE(json);
      CHECK(message_of(json).find("not JSON") != std::string::npos);
    }
    CHECK(message_of("{\"weight_map\":{\"t\xff\":\"a\"}}").find("not UTF-8 at byte 17") !=
          std::string::npos);
  }

  TEST_CASE("nesting is bounded") {
    const auto nested = [](std::size_t levels) {
      return R"({"weight_map":{},"x":)" + std::string(levels, '[') + std::string(levels, ']') + "}";
    };
    CHECK(parse_index(nested(126)));
    CHECK_FALSE(parse_index(nested(127)));
    CHECK_FALSE(parse_index(R"({"weight_map":{},"x":)" + std::string(1'000'000, '[')));
  }

  TEST_CASE("an index above the size limit is refused unread") {
    const std::string json(index_limit + 1, ' ');
    CHECK(message_of(json).find("more than") != std::string::npos);
  }

  TEST_CASE("an index of 100,000 tensors in 200 files is read") {
    std::string json = R"({"weight_map":{)";
    for (int at = 0; at < 100'000; ++at) {
      json += (at > 0 ? ",\"" : "\"") + std::to_string(at) + R"(":"model-)" +
              std::to_string(at % 200) + R"(.safetensors")";
    }
    json += "}}";
    const auto parsed = parse_index(json);
    REQUIRE(parsed);
    CHECK(parsed->files.size() == 200);
    CHECK(parsed->tensors.size() == 100'000);
    const auto file = parsed->find("77777");
    REQUIRE(file);
    CHECK(parsed->files[*file] == "model-177.safetensors");
  }

  TEST_CASE("mutated indexes are refused as such or hold what every index holds") {
    const std::string seed =
        R"({"metadata":{"total_size":12,"x":[1.5,null]},"weight_map":{"a":"m-1.safetensors","b":"m-2.safetensors","c\n":"m-1.safetensors"}})";
    static constexpr std::array<std::string_view, 18> pieces = {"{",
                                                                "}",
                                                                "[",
                                                                "]",
                                                                ",",
                                                                ":",
                                                                "\"",
                                                                "\\",
                                                                "/",
                                                                "..",
                                                                "\"weight_map\"",
                                                                "null",
                                                                "1e400",
                                                                "0e99999999999",
                                                                "\xff",
                                                                "\\u0000",
                                                                "\"a\":\"b\"",
                                                                "\"weight_map\":{}"};
    std::mt19937_64 random(7);
    const auto below = [&random](std::size_t limit) {
      return static_cast<std::size_t>(random() % limit);
    };
    for (int round = 0; round < 20'000; ++round) {
      std::string json = seed;
      for (std::size_t change = 0; change <= below(3); ++change) {
        const auto at = below(json.size());
        switch (below(3)) {
          case 0:
            json[at] = static_cast<char>(below(256));
            break;
          case 1:
            json.insert(at, pieces[below(pieces.size())]);
            break;
          default:
            json.erase(at, 1 + below(6));
            break;
        }
      }
      const auto parsed = parse_index(json);
      if (parsed) {
        check_invariants(*parsed);
      } else {
        CHECK(parsed.error().kind() == errc::invalid_safetensors);
      }
    }
  }
}
