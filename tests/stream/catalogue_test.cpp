#include "stream/catalogue.hpp"

#include <doctest/doctest.h>
#include <support/checkpoint.hpp>

#include <span>
#include <string>
#include <vector>

namespace headrace::detail {
namespace {

using test::wanted_tensor;

parsed_file file(std::string name, const std::vector<wanted_tensor>& tensors,
                 const test::file_form& form = {}) {
  const std::string bytes = test::safetensors_file(tensors, form);
  auto contents = parse_header(std::as_bytes(std::span(bytes)), bytes.size());
  REQUIRE(contents);
  return {std::move(name), bytes.size(), std::move(*contents)};
}

index index_of(const std::vector<std::pair<std::string, std::string>>& places) {
  auto parsed = parse_index(test::index_file(places));
  REQUIRE(parsed);
  return std::move(*parsed);
}

std::vector<parsed_file> files(parsed_file first, parsed_file second) {
  std::vector<parsed_file> both;
  both.push_back(std::move(first));
  both.push_back(std::move(second));
  return both;
}

TEST_SUITE("unit") {
  TEST_CASE("a catalogue finds tensors by name and knows their place in the file") {
    auto built =
        build_catalogue(files(file("a", {{"x", dtype::f32, {2}}, {"y", dtype::u8, {3}}}),
                              file("b", {{"z", dtype::u8, {5}}}, {.metadata = {{"format", "pt"}}})),
                        nullptr);
    REQUIRE(built);
    // Moved, as `open` does: what it finds by are views of its own names.
    const catalogue moved = std::move(*built);
    REQUIRE(moved.tensors.size() == 3);
    CHECK(moved.total_bytes == 16);
    const auto* const z = moved.find("z");
    REQUIRE(z != nullptr);
    CHECK(z->file == 1);
    CHECK(moved.place_of(*z) == byte_range{moved.files[1].header_bytes, 5});
    CHECK(moved.place_of(*moved.find("y")) == byte_range{moved.files[0].header_bytes + 8, 3});
    CHECK(moved.find("w") == nullptr);
    CHECK(moved.files[1].metadata ==
          std::vector<std::pair<std::string, std::string>>{{"format", "pt"}});
    CHECK(moved.files[0].bytes == moved.files[0].header_bytes + 11);
  }

  TEST_CASE("without an index the first file that holds a name wins") {
    const auto built =
        build_catalogue(files(file("a", {{"x", dtype::u8, {1}}}),
                              file("b", {{"x", dtype::u8, {9}}, {"y", dtype::u8, {2}}})),
                        nullptr);
    REQUIRE(built);
    CHECK(built->tensors.size() == 2);
    CHECK(built->find("x")->file == 0);
    CHECK(built->find("x")->size() == 1);
    CHECK(built->total_bytes == 3);
  }

  TEST_CASE("an index allows a tensor from the file that it names, and from no other") {
    const auto shards = index_of({{"x", "b"}, {"y", "a"}});
    const auto built = build_catalogue(
        files(
            file("a", {{"x", dtype::u8, {1}}, {"y", dtype::u8, {2}}, {"unlisted", dtype::u8, {7}}}),
            file("b", {{"x", dtype::u8, {9}}, {"y", dtype::u8, {3}}})),
        &shards);
    REQUIRE(built);
    CHECK(built->tensors.size() == 2);
    CHECK(built->find("x")->file == 1);
    CHECK(built->find("x")->size() == 9);
    CHECK(built->find("y")->file == 0);
    CHECK(built->find("unlisted") == nullptr);
    CHECK(built->total_bytes == 11);
  }

  TEST_CASE("a tensor that the index places in a file that lacks it is invalid") {
    const auto shards = index_of({{"x", "a"}, {"y", "b"}, {"lost", "a"}});
    const auto built =
        build_catalogue(files(file("a", {{"x", dtype::u8, {1}}}),
                              file("b", {{"y", dtype::u8, {1}}, {"lost", dtype::u8, {1}}})),
                        &shards);
    REQUIRE_FALSE(built);
    CHECK(built.error().kind() == errc::invalid_safetensors);
    CHECK(built.error().message().find("\"lost\"") != std::string::npos);
    CHECK(built.error().message().find(" a,") != std::string::npos);
  }
}

}  // namespace
}  // namespace headrace::detail
