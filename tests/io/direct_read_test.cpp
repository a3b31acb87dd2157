#include <headrace/io/direct_read.hpp>

#include <headrace/base/error.hpp>
#include <headrace/coro/async_scope.hpp>
#include <headrace/coro/when.hpp>
#include <headrace/io/bounce_buffer.hpp>
#include <headrace/io/file.hpp>

#include <doctest/doctest.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/magic.h>
#include <support/loop_thread.hpp>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

using namespace headrace;

namespace {

/// A folder where the tests run, below the build folder, which is likelier than /tmp to be on a
/// disk.
class folder_here {
 public:
  folder_here() {
    std::string name = (std::filesystem::current_path() / "direct-read-test-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  folder_here(const folder_here&) = delete;
  folder_here& operator=(const folder_here&) = delete;
  ~folder_here() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  [[nodiscard]] std::string operator/(const char* name) const { return (path_ / name).string(); }

  /// Whether there is a device below that reads have to be aligned for.
  [[nodiscard]] bool on_disk() const {
    struct statfs found{};
    if (::statfs(path_.c_str(), &found) != 0 || found.f_type == TMPFS_MAGIC) return false;
    const std::string probe = *this / "probe";
    std::ofstream(probe) << "x";
    const int number = ::open(probe.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT);
    if (number >= 0) ::close(number);
    return number >= 0;
  }

 private:
  std::filesystem::path path_;
};

#define SKIP_WITHOUT_DISK(here)                                                                 \
  if (!(here).on_disk()) {                                                                      \
    MESSAGE("skipped: the folder that the tests run in is not on a file system with O_DIRECT"); \
    return;                                                                                     \
  }

std::string numbered(std::size_t size) {
  std::string text(size, '\0');
  for (std::size_t at = 0; at < size; ++at)
    text[at] = static_cast<char>((at * 131 + at / 251) % 256);
  return text;
}

/// On the disk, and in no cache.
void write_file(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary)
      .write(text.data(), static_cast<std::streamsize>(text.size()));
  const int number = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  REQUIRE(number >= 0);
  CHECK(::fsync(number) == 0);
  CHECK(::posix_fadvise(number, 0, 0, POSIX_FADV_DONTNEED) == 0);
  ::close(number);
}

std::size_t cached_pages(const std::string& path) {
  const int number = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  REQUIRE(number >= 0);
  const auto size = static_cast<std::size_t>(std::filesystem::file_size(path));
  void* const mapped = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, number, 0);
  REQUIRE(mapped != MAP_FAILED);
  std::vector<unsigned char> pages((size + 4095) / 4096);
  CHECK(::mincore(mapped, size, pages.data()) == 0);
  ::munmap(mapped, size);
  ::close(number);
  return static_cast<std::size_t>(
      std::ranges::count_if(pages, [](unsigned char page) { return (page & 1) != 0; }));
}

task<> open_into(io_context* loop, std::string path, file_access access, file* into) {
  auto opened = co_await file::open(*loop, path, access);
  *into = std::move(opened).value();
}

/// Reads all of `into` from `offset` on, or up to the end; gives how much that was.
task<std::size_t> read_all(io_context* loop, const file* from, std::uint64_t offset,
                           std::vector<iovec> into) {
  std::size_t done = 0;
  std::size_t next = 0;
  while (next < into.size()) {
    const auto count =
        co_await direct_read(*loop, *from, offset + done, std::span(into).subspan(next));
    REQUIRE(count);
    if (*count == 0) break;
    done += *count;
    for (std::size_t left = *count; left > 0;) {
      const std::size_t here = std::min(left, into[next].iov_len);
      into[next] = {static_cast<char*>(into[next].iov_base) + here, into[next].iov_len - here};
      left -= here;
      if (into[next].iov_len == 0) ++next;
    }
  }
  co_return done;
}

task<> read_cached(io_context* loop, const file* from, std::uint64_t offset, std::string* into) {
  const iovec buffer{into->data(), into->size()};
  auto count = co_await from->read(*loop, offset, {&buffer, 1});
  CHECK(std::move(count).value() == into->size());
}

constexpr std::size_t margin = 64;

task<> check_read(io_context* loop, const file* from, const std::string* expected,
                  std::uint64_t offset, std::size_t size, std::size_t shift) {
  // With something around it that must stay as it is.
  std::vector<char> memory(size + 4096 + 2 * margin, '#');
  void* aligned = memory.data() + margin;
  std::size_t room = memory.size() - margin;
  REQUIRE(std::align(2048, 1, aligned, room) != nullptr);
  char* const into = static_cast<char*>(aligned) + shift;
  const std::size_t got = co_await read_all(loop, from, offset, {{into, size}});
  const std::string wanted =
      offset < expected->size() ? expected->substr(offset, size) : std::string();
  CHECK(got == wanted.size());
  CHECK(std::string(into, got) == wanted);
  CHECK(std::all_of(memory.data(), into, [](char byte) { return byte == '#'; }));
  CHECK(std::all_of(into + size, memory.data() + memory.size(),
                    [](char byte) { return byte == '#'; }));
}

task<> check_scattered(io_context* loop, const file* from, const std::string* expected) {
  std::mt19937 random(7);
  std::string into(expected->size(), '\0');
  std::vector<iovec> vectors;
  // Small ones, and now and then one that the device could write by itself.
  for (std::size_t at = 0; at < into.size() && vectors.size() < max_buffers;) {
    const std::size_t wanted = random() % 8 == 0 ? 200'000 + random() % 5000 : 1 + random() % 3000;
    const std::size_t size = std::min(wanted, into.size() - at);
    vectors.push_back({into.data() + at, size});
    at += size;
  }
  const std::size_t planned = total_size(vectors);
  const std::size_t got = co_await read_all(loop, from, 1234, vectors);
  CHECK(got == std::min(planned, expected->size() - 1234));
  CHECK(into.substr(0, got) == expected->substr(1234, got));
}

task<> borrow_and_read(io_context* loop, const file* from, const std::string* expected,
                       bool* registered) {
  *registered = true;
  std::vector<bounce_buffer> borrowed;
  std::vector<int> numbers;
  for (int number = 0; number < 6; ++number) {
    auto one = co_await bounce_buffer::borrow(*loop, 4096);
    CHECK(reinterpret_cast<std::uintptr_t>(one.bytes().data()) % bounce_buffer::alignment == 0);
    const iovec buffer = as_buffer(one.bytes().first(4096));
    const auto count = co_await from->read(*loop, 4096 * number, {&buffer, 1}, one.registered());
    REQUIRE(count);
    CHECK(*count == 4096);
    CHECK(std::string(static_cast<const char*>(buffer.iov_base), 4096) ==
          expected->substr(4096 * number, 4096));
    if (one.registered() < 0 && number < 4) *registered = false;
    numbers.push_back(one.registered());
    borrowed.push_back(std::move(one));
  }
  // Those beyond what is kept are nobody's.
  CHECK(numbers[4] < 0);
  CHECK(numbers[5] < 0);
  borrowed.clear();
  auto again = co_await bounce_buffer::borrow(*loop, bounce_buffer::largest);
  CHECK((again.registered() >= 0) == *registered);
}

task<> read_until_stopped(io_context* loop, const file* from) {
  std::vector<char> memory(600'000);
  const iovec buffer{memory.data() + 8, memory.size() - 8};
  for (;;) {
    const auto count = co_await direct_read(*loop, *from, 8, {&buffer, 1});
    if (!count) {
      CHECK(kind_of(count.error()) == errc::cancelled);
      co_return;
    }
  }
}

task<> join(async_scope* scope) { co_await scope->join(); }

/// Takes from this thread what lets it lock memory beyond the limit.
void forbid_locking() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2]{};
  REQUIRE(::syscall(SYS_capget, &header, data) == 0);
  data[CAP_IPC_LOCK / 32].effective &= ~(1U << (CAP_IPC_LOCK % 32));
  REQUIRE(::syscall(SYS_capset, &header, data) == 0);
}

/// Changes the limit on locked memory while it lives.
class locked_memory_limit {
 public:
  explicit locked_memory_limit(rlim_t limit) {
    REQUIRE(::getrlimit(RLIMIT_MEMLOCK, &before_) == 0);
    const rlimit wanted{std::min(limit, before_.rlim_cur), before_.rlim_max};
    REQUIRE(::setrlimit(RLIMIT_MEMLOCK, &wanted) == 0);
  }
  locked_memory_limit(const locked_memory_limit&) = delete;
  locked_memory_limit& operator=(const locked_memory_limit&) = delete;
  ~locked_memory_limit() { ::setrlimit(RLIMIT_MEMLOCK, &before_); }

 private:
  rlimit before_{};
};

}  // namespace

TEST_SUITE("unit") {
  TEST_CASE("any bytes are read past the page cache, into any memory") {
    const folder_here here;
    SKIP_WITHOUT_DISK(here);
    const std::string text = numbered(3'000'001);
    write_file(here / "data", text);
    test::loop_thread loop;
    file from;
    loop.run(open_into(&loop.context(), here / "data", file_access::direct, &from));
    REQUIRE(from.direct().offset > 0);
    for (const std::uint64_t offset : {0, 1, 8, 511, 512, 4096, 100'000, 1'048'576, 2'999'999,
                                       3'000'000, 3'000'001, 5'000'000}) {
      for (const std::size_t size : {1, 511, 512, 5000, 140'000, 1'100'000, 2'500'000}) {
        for (const std::size_t shift : {0, 1, 4, 512}) {
          CAPTURE(offset);
          CAPTURE(size);
          CAPTURE(shift);
          loop.run(check_read(&loop.context(), &from, &text, offset, size, shift));
        }
      }
    }
    loop.run(check_scattered(&loop.context(), &from, &text));
    CHECK(cached_pages(here / "data") == 0);
  }

  TEST_CASE("a file that is read through the page cache is found there") {
    const folder_here here;
    SKIP_WITHOUT_DISK(here);
    const std::string text = numbered(100'000);
    write_file(here / "data", text);
    CHECK(cached_pages(here / "data") == 0);
    test::loop_thread loop;
    file from;
    SUBCASE("as it was asked for") {
      loop.run(open_into(&loop.context(), here / "data", file_access::cached, &from));
    }
    SUBCASE("as was found out later") {
      loop.run(open_into(&loop.context(), here / "data", file_access::direct, &from));
      from.leave_direct();
    }
    CHECK(from.direct().offset == 0);
    std::string into(text.size() - 3, '\0');
    loop.run(read_cached(&loop.context(), &from, 3, &into));
    CHECK(into == text.substr(3));
    CHECK(cached_pages(here / "data") > 0);
  }

  TEST_CASE("a file system that knows nothing of direct reads gives its bytes all the same") {
    test::loop_thread loop;
    file from;
    loop.run(open_into(&loop.context(), "/proc/self/status", file_access::direct, &from));
    CHECK(from.direct().offset == 0);
    std::string into(5, '\0');
    loop.run(read_cached(&loop.context(), &from, 0, &into));
    CHECK(into == "Name:");
  }

  TEST_CASE("a file that became shorter is read directly up to its end") {
    const folder_here here;
    SKIP_WITHOUT_DISK(here);
    const std::string text = numbered(1'000'000);
    write_file(here / "data", text);
    test::loop_thread loop;
    file from;
    loop.run(open_into(&loop.context(), here / "data", file_access::direct, &from));
    for (const std::size_t size : {999'999, 600'001, 600'000, 4096, 300, 0}) {
      CAPTURE(size);
      std::filesystem::resize_file(here / "data", size);
      const std::string rest = text.substr(0, size);
      for (const std::uint64_t offset : {0, 8, 5000})
        loop.run(check_read(&loop.context(), &from, &rest, offset, 900'000, 8));
    }
  }

  TEST_CASE("bounce buffers are registered where locked memory allows, and work where not") {
    const folder_here here;
    SKIP_WITHOUT_DISK(here);
    const std::string text = numbered(30'000);
    write_file(here / "data", text);
    const io_backend backend = resolve_backend(io_backend_from_environment().value());
    bool registered = false;
    SUBCASE("with locked memory") {
      test::loop_thread loop(backend);
      file from;
      loop.run(open_into(&loop.context(), here / "data", file_access::direct, &from));
      loop.run(borrow_and_read(&loop.context(), &from, &text, &registered));
      rlimit limit{};
      REQUIRE(::getrlimit(RLIMIT_MEMLOCK, &limit) == 0);
      if (backend == io_backend::epoll) CHECK_FALSE(registered);
      if (backend == io_backend::uring && (limit.rlim_cur >= 64_MiB || ::geteuid() == 0))
        CHECK(registered);
    }
    SUBCASE("without") {
      // The ring takes the rights of the thread that makes it.
      std::thread([&] {
        forbid_locking();
        const locked_memory_limit little(2_MiB);
        std::optional<test::loop_thread> made;
        try {
          made.emplace(backend);
        } catch (const error&) {
          MESSAGE("skipped: no ring within 2 MiB of locked memory");
          return;
        }
        test::loop_thread& loop = *made;
        file from;
        loop.run(open_into(&loop.context(), here / "data", file_access::direct, &from));
        loop.run(borrow_and_read(&loop.context(), &from, &text, &registered));
      }).join();
      CHECK_FALSE(registered);
    }
  }

  TEST_CASE("a stop ends direct reads, and the memory is given back only then") {
    const folder_here here;
    SKIP_WITHOUT_DISK(here);
    write_file(here / "data", numbered(1'000'000));
    test::loop_thread loop;
    file from;
    loop.run(open_into(&loop.context(), here / "data", file_access::direct, &from));
    for (int round = 0; round < 40; ++round) {
      async_scope scope;
      for (int at = 0; at < 6; ++at)
        scope.spawn(loop.context(), read_until_stopped(&loop.context(), &from));
      const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(round * 50);
      while (std::chrono::steady_clock::now() < until) std::this_thread::yield();
      scope.request_stop();
      sync_wait(join(&scope));
    }
  }
}
