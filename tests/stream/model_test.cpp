#include <headrace/stream/model.hpp>

#include "streaming.hpp"

#include <doctest/doctest.h>
#include <support/checkpoint.hpp>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

namespace headrace {
namespace {

using namespace std::chrono_literals;
using test::checkpoint;
using test::failure_of;
using test::safetensors_file;
using test::small_model;
using test::temporary_directory;

/// The error of opening `uri`.
error refused(const std::string& uri, open_options options = {}) {
  runtime engine;
  auto failed =
      failure_of([&] { static_cast<void>(test::run(open(engine, uri, std::move(options)))); });
  REQUIRE_MESSAGE(failed, uri);
  return *failed;
}

bool says(const error& failed, std::string_view part) {
  return failed.message().find(part) != std::string::npos;
}

TEST_SUITE("unit") {
  TEST_CASE("a directory of shards is opened by what is in it") {
    const temporary_directory place;
    const auto expected = small_model();
    place.write(expected, {.metadata = {{"format", "pt"}}});
    place.write("config.json", "{}");
    runtime engine;
    const model opened = test::run(open(engine, place.path()));
    CHECK(opened.files().size() == 3);
    CHECK(opened.tensors().size() == expected.tensors());
    CHECK(opened.total_bytes() == expected.bytes());
    CHECK(opened.uri() == place.path());
    std::string before;
    for (const auto& file : opened.files()) {
      CHECK(before < file.name);
      before = file.name;
      CHECK(file.bytes == std::filesystem::file_size(place.path_of(file.name)));
      CHECK(file.metadata == std::vector<std::pair<std::string, std::string>>{{"format", "pt"}});
    }
    for (const auto& info : opened.tensors()) {
      const auto* const wanted = expected.find(info.name);
      REQUIRE(wanted != nullptr);
      CHECK(info.dtype == wanted->dtype);
      CHECK(info.shape == wanted->shape);
      CHECK(info.size() == wanted->size());
      CHECK(opened.find(info.name) == &info);
    }
    CHECK(opened.find("nothing") == nullptr);
    CHECK(test::stream_all(opened, expected).right);
  }

  TEST_CASE("an index says which files there are and what counts in them") {
    const temporary_directory place;
    place.write("one.safetensors",
                safetensors_file({{"a", dtype::u8, {10}}, {"b", dtype::u8, {20}}}));
    place.write("two.safetensors",
                safetensors_file({{"b", dtype::u8, {30}}, {"c", dtype::u8, {40}}}));
    place.write("other.safetensors", safetensors_file({{"d", dtype::u8, {50}}}));
    place.write("model.safetensors.index.json",
                test::index_file({{"a", "one.safetensors"}, {"b", "two.safetensors"}}));
    runtime engine;
    const model opened = test::run(open(engine, place.path()));
    CHECK(opened.files().size() == 2);
    CHECK(opened.tensors().size() == 2);
    REQUIRE(opened.find("b") != nullptr);
    CHECK(opened.find("b")->size() == 30);
    CHECK(opened.find("c") == nullptr);
    const checkpoint expected{{{"x", {{"a", dtype::u8, {10}}, {"b", dtype::u8, {30}}}}}};
    const auto all = test::stream_all(opened, expected);
    CHECK(all.right);
    CHECK(all.names.size() == 2);
  }

  TEST_CASE("a single file is a model") {
    const temporary_directory place;
    const auto expected = small_model(1);
    place.write(expected);
    place.write("model.safetensors.index.json", "not looked at");
    runtime engine;
    for (const std::string prefix : {"", "file://"}) {
      const model opened =
          test::run(open(engine, prefix + place.path_of("model-00001-of-00001.safetensors")));
      CHECK(opened.files().size() == 1);
      const auto all = test::stream_all(opened, expected);
      CHECK(all.right);
      CHECK(all.names.size() == expected.tensors());
    }
  }

  TEST_CASE("a header larger than the speculative bytes is read whole") {
    const temporary_directory place;
    const auto expected = small_model(2);
    for (const std::size_t padding :
         {std::size_t{60'000}, std::size_t{65'536}, std::size_t{300'000}}) {
      place.write(expected, {.padding = padding});
      runtime engine;
      const model opened = test::run(open(engine, place.path()));
      CHECK(opened.files()[0].header_bytes > padding);
      const auto all = test::stream_all(opened, expected);
      CHECK(all.right);
      CHECK(all.names.size() == expected.tensors());
    }
  }

  TEST_CASE("a file without tensors is a model without tensors") {
    const temporary_directory place;
    place.write("x.safetensors", safetensors_file({}));
    runtime engine;
    const model opened = test::run(open(engine, place.path()));
    CHECK(opened.tensors().empty());
    const auto all = test::stream_all(opened, {});
    CHECK(all.names.empty());
  }

  TEST_CASE("read_file brings a small file, whole") {
    const temporary_directory place;
    place.write(small_model(1));
    const std::string large = test::content_of("large", 200'000);
    place.write("config.json", "{\"a\": 1}");
    place.write("large.bin", large);
    place.write("empty", "");
    runtime engine;
    const model opened = test::run(open(engine, place.path(), {.deadline = 30s}));
    const auto read = [&opened](const char* name) {
      const auto bytes = test::run(opened.read_file(std::string(name)));
      return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    };
    CHECK(read("config.json") == "{\"a\": 1}");
    CHECK((read("large.bin") == large));
    CHECK(read("empty").empty());
    const auto missing = failure_of([&] { read("missing.json"); });
    REQUIRE(missing);
    CHECK(missing->kind() == errc::not_found);
    CHECK(says(*missing, "missing.json"));
  }

  TEST_CASE("list_files names what lies under the location, at any depth") {
    const temporary_directory place;
    place.write(small_model(1));
    place.write("config.json", "{}");
    std::filesystem::create_directories(place.path_of("sub/deep"));
    place.write("sub/deep/notes.txt", "12345");
    runtime engine;
    const model opened = test::run(open(engine, place.path(), {.deadline = 30s}));
    const auto listed = test::run(opened.list_files());
    CHECK(std::ranges::is_sorted(listed, {}, &object_entry::name));
    CHECK(std::ranges::find(listed, object_entry{"config.json", 2}) != listed.end());
    CHECK(std::ranges::find(listed, object_entry{"sub/deep/notes.txt", 5}) != listed.end());
    CHECK(listed.size() == 3);
    for (const object_entry& entry : listed) {
      const auto bytes = test::run(opened.read_file(entry.name));
      CHECK(bytes.size() == entry.size);
    }
  }

  TEST_CASE("statistics count what was read") {
    const temporary_directory place;
    const auto expected = small_model();
    place.write(expected);
    runtime engine;
    const auto before = std::chrono::steady_clock::now();
    const model opened = test::run(open(engine, place.path()));
    const auto after_open = opened.statistics();
    CHECK(after_open.requests == 3);
    REQUIRE(after_open.first_request);
    CHECK(*after_open.first_request >= before);
    CHECK(test::stream_all(opened, expected).right);
    const auto after = opened.statistics();
    CHECK(after.bytes >= expected.bytes());
    CHECK(after.retries == 0);
    CHECK(after.first_request == after_open.first_request);
    // What `open` had read was not read again.
    std::uint64_t files = 0;
    for (const auto& file : opened.files()) files += file.bytes;
    CHECK(after.bytes == files);
  }

  TEST_CASE("local files are read past the page cache, whatever they hold") {
    const temporary_directory place;
    // Tensors that begin anywhere, of a few bytes and of more than a bounce buffer.
    auto expected = small_model(2, 700, 4);
    expected.files.begin()->second.push_back({"odd", dtype::u8, {3'000'001}});
    expected.files.begin()->second.push_back({"last", dtype::f32, {1'000'003}});
    place.write(expected);
    place.write("config.json", "{}");
    runtime engine;
    const model opened = test::run(open(engine, place.path(), {.direct_io = true}));
    for (const std::size_t limit : {16_MiB, 1_GiB}) {
      const auto all = test::stream_all(opened, expected, {.memory_limit = limit});
      CHECK(all.right);
      CHECK(all.names.size() == expected.tensors());
    }
    CHECK(test::run(opened.read_file("config.json")).size() == 2);
    const model again = test::run(open(engine, place.path(), {.direct_io = true}));
    place.write(expected, {.version = 1});
    const auto changed = failure_of([&] { static_cast<void>(test::stream_all(again, expected)); });
    REQUIRE(changed);
    CHECK(changed->kind() == errc::object_changed);
  }

  TEST_CASE("a place that is not there is not found") {
    const temporary_directory place;
    CHECK(refused(place.path_of("nowhere")).kind() == errc::not_found);
    const auto file = refused(place.path_of("nothing.safetensors"));
    CHECK(file.kind() == errc::not_found);
    CHECK(says(file, "nothing.safetensors"));
  }

  TEST_CASE("a directory without safetensors files says what was looked for") {
    const temporary_directory place;
    place.write("readme.md", "");
    place.write("pytorch_model.bin", "");
    place.write("below/model.safetensors", safetensors_file({}));
    const auto failed = refused(place.path());
    CHECK(failed.kind() == errc::not_found);
    CHECK(says(failed, "No files found"));
    CHECK(says(failed, place.path()));
    CHECK(says(failed, "*.safetensors"));
  }

  TEST_CASE("files that are not what they claim are invalid") {
    const temporary_directory place;
    const std::string good = safetensors_file({{"a", dtype::f32, {1000}}});
    const auto with_length = [&good](std::uint64_t length) {
      std::string bytes = good;
      std::memcpy(bytes.data(), &length, sizeof length);
      return bytes;
    };
    const std::vector<std::pair<const char*, std::string>> files = {
        {"empty", ""},
        {"seven bytes", good.substr(0, 7)},
        {"a length alone", good.substr(0, 8)},
        {"header cut short", good.substr(0, 30)},
        {"data cut short", good.substr(0, good.size() - 1)},
        {"data too long", good + "x"},
        {"a header of 2^63", with_length(std::uint64_t{1} << 63)},
        {"a header of 100 MB", with_length(100'000'000)},
        {"no JSON", std::string("\x04\0\0\0\0\0\0\0nope", 12)},
    };
    for (const auto& [what, bytes] : files) {
      CAPTURE(what);
      place.write("model.safetensors", bytes);
      const auto failed = refused(place.path());
      CHECK(failed.kind() == errc::invalid_safetensors);
      CHECK(says(failed, place.path_of("model.safetensors")));
    }
  }

  TEST_CASE("a malformed index is invalid") {
    const temporary_directory place;
    place.write(small_model(1));
    for (const char* const bytes : {"", "{", "[]", "{\"weight_map\": 3}",
                                    "{\"weight_map\": {\"a\": \"../x.safetensors\"}}"}) {
      CAPTURE(bytes);
      place.write("model.safetensors.index.json", bytes);
      const auto failed = refused(place.path());
      CHECK(failed.kind() == errc::invalid_safetensors);
      CHECK(says(failed, "model.safetensors.index.json"));
    }
  }

  TEST_CASE("a file that the index names and nobody has is not found") {
    const temporary_directory place;
    place.write("one.safetensors", safetensors_file({{"a", dtype::u8, {10}}}));
    place.write("model.safetensors.index.json",
                test::index_file({{"a", "one.safetensors"}, {"b", "two.safetensors"}}));
    const auto failed = refused(place.path());
    CHECK(failed.kind() == errc::not_found);
    CHECK(says(failed, "two.safetensors"));
    CHECK(says(failed, "model.safetensors.index.json"));
  }

  TEST_CASE("a tensor that its file lacks is invalid") {
    const temporary_directory place;
    place.write("one.safetensors", safetensors_file({{"a", dtype::u8, {10}}}));
    place.write("model.safetensors.index.json",
                test::index_file({{"a", "one.safetensors"}, {"b", "one.safetensors"}}));
    const auto failed = refused(place.path());
    CHECK(failed.kind() == errc::invalid_safetensors);
    CHECK(says(failed, "\"b\""));
    CHECK(says(failed, "one.safetensors"));
  }

  TEST_CASE("what is no regular file is refused and never waited for") {
    const temporary_directory place;
    std::filesystem::create_directory(place.path_of("directory.safetensors"));
    REQUIRE(::mkfifo(place.path_of("pipe.safetensors").c_str(), 0600) == 0);
    for (const char* const name : {"directory.safetensors", "pipe.safetensors"}) {
      const auto failed = refused(place.path_of(name));
      CHECK(failed.kind() == errc::invalid_request);
      CHECK(says(failed, name));
    }
    // In a listing they are no files of the model.
    CHECK(refused(place.path()).kind() == errc::not_found);
    place.write("model.safetensors.index.json", test::index_file({{"a", "directory.safetensors"}}));
    CHECK(says(refused(place.path()), "directory.safetensors"));
  }

  TEST_CASE("a file that may not be read is access_denied") {
    if (::geteuid() == 0) return;  // nothing is forbidden to it
    const temporary_directory place;
    place.write("model.safetensors", safetensors_file({}));
    std::filesystem::permissions(place.path_of("model.safetensors"), std::filesystem::perms::none);
    CHECK(refused(place.path()).kind() == errc::access_denied);
  }

  TEST_CASE("bad locations and options are refused before anything is done") {
    const temporary_directory place;
    place.write(small_model(1));
    CHECK(refused("ftp://host/model").kind() == errc::unsupported);
    CHECK(refused("s3://").kind() == errc::invalid_request);
    CHECK(refused("s3://bucket").kind() == errc::invalid_request);
    CHECK(refused("s3://bucket/").kind() == errc::invalid_request);
    const auto at = place.path();
    CHECK(refused(at, {.chunk_size = 0}).kind() == errc::invalid_request);
    CHECK(refused(at, {.max_concurrency = 0}).kind() == errc::invalid_request);
    CHECK(refused(at, {.connect_limit = 0ms}).kind() == errc::invalid_request);
    CHECK(refused(at, {.stall_limit = -1ms}).kind() == errc::invalid_request);
    CHECK(refused(at, {.deadline = -1ms}).kind() == errc::invalid_request);
    open_options secret;
    secret.storage.headers = {{"X-Secret", "hunter2\r\n"}};
    const auto failed = refused("http://127.0.0.1:1/model", secret);
    CHECK(failed.kind() == errc::invalid_request);
    CHECK_FALSE(says(failed, "hunter2"));
  }

  TEST_CASE("opening can be stopped") {
    const temporary_directory place;
    place.write(small_model(1));
    runtime engine;
    std::stop_source stop;
    stop.request_stop();
    const auto failed = failure_of(
        [&] { static_cast<void>(test::run(open(engine, place.path()), stop.get_token())); });
    REQUIRE(failed);
    CHECK(failed->kind() == errc::cancelled);
  }
}

}  // namespace
}  // namespace headrace
