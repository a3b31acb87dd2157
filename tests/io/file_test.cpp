#include <headrace/io/file.hpp>

#include "raw_peer.hpp"

#include <headrace/base/error.hpp>
#include <headrace/coro/async_scope.hpp>
#include <headrace/coro/when.hpp>

#include <doctest/doctest.h>
#include <support/loop_thread.hpp>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

using namespace headrace;

namespace {

class temporary_directory {
 public:
  temporary_directory() {
    std::string name =
        (std::filesystem::temp_directory_path() / "headrace-file-test-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  temporary_directory(const temporary_directory&) = delete;
  temporary_directory& operator=(const temporary_directory&) = delete;
  ~temporary_directory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  [[nodiscard]] std::string operator/(const char* name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

std::string numbered(std::size_t size) {
  std::string text(size, '\0');
  for (std::size_t at = 0; at < size; ++at)
    text[at] = static_cast<char>((at * 131 + at / 251) % 256);
  return text;
}

void write_file(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary)
      .write(text.data(), static_cast<std::streamsize>(text.size()));
}

task<std::string> read_at(io_context* loop, const file* from, std::uint64_t offset,
                          std::size_t size) {
  std::string bytes(size, '\0');
  const iovec buffer{bytes.data(), bytes.size()};
  auto count = co_await from->read(*loop, offset, {&buffer, 1});
  bytes.resize(std::move(count).value());
  co_return bytes;
}

task<> check_reads(io_context* loop, std::string path, std::string expected) {
  auto opened = co_await file::open(*loop, path);
  auto from = std::move(opened).value();
  const auto status = from.status();
  REQUIRE(status);
  CHECK(status->st_size == static_cast<off_t>(expected.size()));
  for (const std::size_t size : {1, 7, 4096, 100'000, 2'000'000}) {
    for (const std::uint64_t offset : {0, 1, 4095, 4096, 999'999, 1'000'000, 5'000'000}) {
      CAPTURE(size);
      CAPTURE(offset);
      const auto got = co_await read_at(loop, &from, offset, size);
      const auto wanted = offset < expected.size() ? expected.substr(offset, size) : std::string();
      CHECK(got == wanted);
    }
  }
}

task<> check_scattered(io_context* loop, std::string path, std::string expected) {
  auto opened = co_await file::open(*loop, path);
  auto from = std::move(opened).value();
  std::string into(expected.size(), '\0');
  std::vector<iovec> vectors;
  std::mt19937 random(3);
  for (std::size_t at = 0; at < into.size() && vectors.size() < max_buffers;) {
    const auto size = std::min<std::size_t>(1 + random() % 900, into.size() - at);
    vectors.push_back({into.data() + at, size});
    at += size;
  }
  REQUIRE(vectors.size() == max_buffers);
  const auto planned = total_size(vectors);
  auto count = co_await from.read(*loop, 11, vectors);
  CHECK(std::move(count).value() == planned);
  CHECK(into.substr(0, planned) == expected.substr(11, planned));
}

task<std::string> read_piece(io_context* loop, const file* from, std::uint64_t offset) {
  auto piece = co_await read_at(loop, from, offset, 1000);
  co_return piece;
}

task<> check_many_at_once(io_context* loop, std::string path, std::string expected) {
  auto opened = co_await file::open(*loop, path);
  auto from = std::move(opened).value();
  std::vector<task<std::string>> works;
  for (std::uint64_t at = 0; at < 800; ++at) works.push_back(read_piece(loop, &from, at * 1000));
  const auto pieces = co_await when_all(std::move(works));
  std::string all;
  for (const auto& piece : pieces) all += piece;
  CHECK(all == expected.substr(0, 800'000));
}

task<error> failure_to_open(io_context* loop, std::string path) {
  auto opened = co_await file::open(*loop, path);
  REQUIRE(!opened);
  co_return opened.error();
}

task<std::string> read_after_truncation(io_context* loop, std::string path) {
  auto opened = co_await file::open(*loop, path);
  auto from = std::move(opened).value();
  std::filesystem::resize_file(path, 5);
  auto got = co_await read_at(loop, &from, 0, 100);
  const auto past = co_await read_at(loop, &from, 50, 100);
  CHECK(past.empty());
  co_return got;
}

task<> read_until_stopped(io_context* loop, const file* from, int* reads) {
  std::string into(1 << 20, '\0');
  const iovec buffer{into.data(), into.size()};
  for (;;) {
    auto count = co_await from->read(*loop, 0, {&buffer, 1});
    if (!count) {
      CHECK(kind_of(count.error()) == errc::cancelled);
      co_return;
    }
    ++*reads;
  }
}

task<> open_into(io_context* loop, std::string path, file* into) {
  auto opened = co_await file::open(*loop, path);
  *into = std::move(opened).value();
}

task<> join(async_scope* scope) { co_await scope->join(); }

task<> open_and_drop(io_context* loop, std::string path) {
  for (int round = 0; round < 20; ++round) {
    auto opened = co_await file::open(*loop, path);
    CHECK(opened);
  }
}

}  // namespace

TEST_SUITE("unit") {
  TEST_CASE("a file is read at any offset, in any size, and ends") {
    const temporary_directory here;
    const auto text = numbered(1'000'000);
    write_file(here / "data", text);
    test::loop_thread loop;
    loop.run(check_reads(&loop.context(), here / "data", text));
    loop.run(check_scattered(&loop.context(), here / "data", text));
    loop.run(check_many_at_once(&loop.context(), here / "data", text));
  }

  TEST_CASE("an empty file is read as its end") {
    const temporary_directory here;
    write_file(here / "empty", "");
    test::loop_thread loop;
    loop.run(check_reads(&loop.context(), here / "empty", ""));
  }

  TEST_CASE("a file that became shorter is read up to its end") {
    const temporary_directory here;
    write_file(here / "data", numbered(100));
    test::loop_thread loop;
    CHECK(loop.run(read_after_truncation(&loop.context(), here / "data")) == numbered(5));
  }

  TEST_CASE("a file that cannot be opened is an error that names it") {
    const temporary_directory here;
    test::loop_thread loop;
    const auto missing = loop.run(failure_to_open(&loop.context(), here / "missing"));
    CHECK(missing.kind() == errc::not_found);
    CHECK(missing.message().find(here / "missing") != std::string::npos);
    write_file(here / "data", "x");
    CHECK(loop.run(failure_to_open(&loop.context(), here / "data/below")).kind() ==
          errc::not_found);
    CHECK(loop.run(failure_to_open(&loop.context(), here / std::string(300, 'n').c_str())).kind() ==
          errc::invalid_request);
    REQUIRE(::symlink("loop", (here / "loop").c_str()) == 0);
    CHECK(loop.run(failure_to_open(&loop.context(), here / "loop")).kind() ==
          errc::invalid_request);
    REQUIRE(::symlink((here / "nowhere").c_str(), (here / "dangling").c_str()) == 0);
    CHECK(loop.run(failure_to_open(&loop.context(), here / "dangling")).kind() == errc::not_found);
  }

  TEST_CASE("a file that may not be read is access_denied") {
    if (::geteuid() == 0) return;  // root may read everything
    const temporary_directory here;
    write_file(here / "secret", "x");
    REQUIRE(::chmod((here / "secret").c_str(), 0) == 0);
    test::loop_thread loop;
    CHECK(loop.run(failure_to_open(&loop.context(), here / "secret")).kind() ==
          errc::access_denied);
  }

  TEST_CASE("a directory, a FIFO and a device are refused at once, by name") {
    const temporary_directory here;
    REQUIRE(::mkfifo((here / "fifo").c_str(), 0600) == 0);
    REQUIRE(::mkdir((here / "directory").c_str(), 0700) == 0);
    test::loop_thread loop;
    for (const std::string& path : {here / "fifo", here / "directory", std::string("/dev/null")}) {
      const auto refused = loop.run(failure_to_open(&loop.context(), path));
      CHECK(refused.kind() == errc::invalid_request);
      CHECK(refused.message().find(path) != std::string::npos);
    }
  }

  TEST_CASE("a stop ends reading, and the memory is given back only then") {
    const temporary_directory here;
    write_file(here / "data", numbered(1'000'000));
    test::loop_thread loop;
    file from;
    loop.run(open_into(&loop.context(), here / "data", &from));
    for (int round = 0; round < 50; ++round) {
      int reads = 0;
      async_scope scope;
      for (int at = 0; at < 4; ++at)
        scope.spawn(loop.context(), read_until_stopped(&loop.context(), &from, &reads));
      const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(round * 20);
      while (std::chrono::steady_clock::now() < until) std::this_thread::yield();
      scope.request_stop();
      sync_wait(join(&scope));
    }
  }

  TEST_CASE("files that are opened are closed") {
    const temporary_directory here;
    write_file(here / "data", "x");
    test::loop_thread loop;
    loop.run(open_and_drop(&loop.context(), here / "data"));
    const auto before = test::open_descriptors();
    loop.run(open_and_drop(&loop.context(), here / "data"));
    static_cast<void>(loop.run(failure_to_open(&loop.context(), "/dev/null")));
    CHECK(test::open_descriptors() == before);
  }
}
