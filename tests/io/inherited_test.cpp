#include <headrace/io/inherited.hpp>

#include "raw_peer.hpp"

#include <headrace/io/socket.hpp>

#include <doctest/doctest.h>
#include <fcntl.h>
#include <support/loop_thread.hpp>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <vector>

using namespace headrace;
using detail::inherited_descriptors;

namespace {

bool is_open(int number) { return ::fcntl(number, F_GETFD) >= 0; }

/// Forks as the runtime does, and gives the child's exit status: whether `closed` are closed there
/// and `kept` is not.
int child_closes(const std::vector<int>& closed, int kept) {
  inherited_descriptors::lock();
  const pid_t child = ::fork();
  if (child == 0) {
    inherited_descriptors::close_in_child();
    for (const int number : closed) {
      if (is_open(number)) ::_exit(1);
    }
    if (!is_open(kept)) ::_exit(2);
    // Usable again, and empty: the numbers may belong to something else by now.
    inherited_descriptors::add(kept);
    inherited_descriptors::close(kept);
    ::_exit(is_open(kept) ? 3 : 0);
  }
  inherited_descriptors::unlock();
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

task<int> open_one(io_context* loop, headrace::socket* into) {
  *into = headrace::socket::open(*loop, AF_INET).value();
  co_return into->native();
}

task<> drop(headrace::socket* dropped) {
  *dropped = {};
  co_return;
}

}  // namespace

TEST_SUITE("unit") {
  TEST_CASE("a forked child closes what was added, and nothing else; its parent keeps all") {
    std::array<int, 2> known{};
    std::array<int, 2> other{};
    REQUIRE(::pipe2(known.data(), O_CLOEXEC) == 0);
    REQUIRE(::pipe2(other.data(), O_CLOEXEC) == 0);
    inherited_descriptors::add(known[0]);
    inherited_descriptors::add(known[1]);
    inherited_descriptors::add(other[1]);
    inherited_descriptors::forget(other[1]);
    CHECK(child_closes({known[0], known[1]}, other[1]) == 0);
    CHECK(is_open(known[0]));
    CHECK(is_open(other[1]));
    inherited_descriptors::close(known[0]);
    inherited_descriptors::close(known[1]);
    CHECK(!is_open(known[0]));
    ::close(other[0]);
    ::close(other[1]);
  }

  TEST_CASE("a forked child closes its parent's sockets") {
    test::loop_thread loop;
    headrace::socket opened;
    const int number = loop.run(open_one(&loop.context(), &opened));
    const test::raw_listener kept;
    CHECK(child_closes({number}, kept.native()) == 0);
    CHECK(is_open(number));
    loop.run(drop(&opened));
    CHECK(!is_open(number));
  }
}
