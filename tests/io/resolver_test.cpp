#include "raw_peer.hpp"

#include <headrace/base/error.hpp>
#include <headrace/coro/async_scope.hpp>
#include <headrace/io/resolver.hpp>

#include <support/loop_thread.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

using namespace headrace;
using namespace std::chrono_literals;

namespace {

task<std::unique_ptr<resolver>> make(io_context* loop) { co_return std::make_unique<resolver>(*loop); }

task<> drop(std::unique_ptr<resolver> dropped) {
  const std::unique_ptr<resolver> here = std::move(dropped);
  co_return;
}

task<std::vector<std::string>> resolve(resolver* by, std::string host, std::uint16_t port) {
  auto found = co_await by->resolve(std::move(host), port);
  const auto addresses = std::move(found).value();
  std::vector<std::string> names;
  for (const auto& each : addresses) names.push_back(each.to_string());
  co_return names;
}

task<error> failure_of(resolver* by, std::string host) {
  auto found = co_await by->resolve(std::move(host), 80);
  if (!found) co_return found.error();
  co_return error(errc::internal, "resolved");
}

task<> fail_into(resolver* by, std::string host, std::vector<errc>* kinds) {
  const error failed = co_await failure_of(by, std::move(host));
  kinds->push_back(failed.kind());
}

task<> join(async_scope* scope) { co_await scope->join(); }

/// A resolver on a loop of its own.
struct resolving {
  test::loop_thread loop;
  std::unique_ptr<resolver> names = loop.run(make(&loop.context()));
  ~resolving() { loop.run(drop(std::move(names))); }
};

bool contains(const std::vector<std::string>& all, std::string_view one) {
  return std::find(all.begin(), all.end(), one) != all.end();
}

}  // namespace

TEST_SUITE("unit") {
  TEST_CASE("a literal address is its own answer") {
    resolving here;
    CHECK(here.loop.run(resolve(here.names.get(), "127.0.0.1", 80)) == std::vector<std::string>{"127.0.0.1:80"});
    CHECK(here.loop.run(resolve(here.names.get(), "::1", 80)) == std::vector<std::string>{"[::1]:80"});
    CHECK(here.loop.run(resolve(here.names.get(), "[::1]", 80)) == std::vector<std::string>{"[::1]:80"});
  }

  TEST_CASE("localhost is this machine, as often as it is asked") {
    resolving here;
    for (int round = 0; round < 20; ++round) {
      const auto found = here.loop.run(resolve(here.names.get(), "localhost", 8080));
      CHECK((contains(found, "127.0.0.1:8080") || contains(found, "[::1]:8080")));
    }
  }

  TEST_CASE("what cannot be a name is a connect_error at once, and names the host") {
    resolving here;
    for (const std::string host : {std::string(), std::string("a..b"), std::string("local\0host", 10),
                                   std::string(300, 'a'), std::string("two words")}) {
      CAPTURE(host);
      // A name server may be asked for some of them: then the stop is what ends it.
      std::stop_source source;
      const auto failed = here.loop.run(with_stop(source.get_token(), failure_of(here.names.get(), host)));
      CHECK(failed.kind() == errc::connect_error);
      CHECK(failed.reason().find(host) != std::string::npos);
    }
  }

  TEST_CASE("a stop before it begins and a stop while it waits end a look-up") {
    resolving here;
    {
      std::stop_source source;
      source.request_stop();
      const auto failed =
          here.loop.run(with_stop(source.get_token(), failure_of(here.names.get(), "nobody.invalid")));
      CHECK((failed.kind() == errc::cancelled || failed.kind() == errc::connect_error));
    }
    for (int round = 0; round < 50; ++round) {
      std::stop_source source;
      std::thread stopper([&source, round] {
        const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(round * 10);
        while (std::chrono::steady_clock::now() < until) std::this_thread::yield();
        source.request_stop();
      });
      const auto failed =
          here.loop.run(with_stop(source.get_token(), failure_of(here.names.get(), "nobody.invalid")));
      // Where there is no name server, or one that answers at once, it may have failed before.
      CHECK((failed.kind() == errc::cancelled || failed.kind() == errc::connect_error));
      stopper.join();
    }
  }

  TEST_CASE("of several look-ups at once a stop ends its own and leaves the others to their end") {
    resolving here;
    for (int round = 0; round < 20; ++round) {
      std::vector<errc> stopped_kinds;
      std::vector<errc> other_kinds;
      async_scope stopped;
      async_scope others;
      for (int at = 0; at < 3; ++at) {
        others.spawn(here.loop.context(), fail_into(here.names.get(), "other.invalid", &other_kinds));
        stopped.spawn(here.loop.context(), fail_into(here.names.get(), "stopped.invalid", &stopped_kinds));
      }
      stopped.request_stop();
      sync_wait(join(&stopped));
      CHECK(stopped_kinds.size() == 3);
      // A name server that never answers would keep us here.
      others.request_stop();
      sync_wait(join(&others));
      CHECK(other_kinds.size() == 3);
    }
    // And the resolver still works.
    CHECK(!here.loop.run(resolve(here.names.get(), "localhost", 1)).empty());
  }

  TEST_CASE("a resolver leaves no descriptor behind") {
    { const resolving first; }
    const auto before = test::open_descriptors();
    {
      resolving here;
      CHECK(!here.loop.run(resolve(here.names.get(), "localhost", 1)).empty());
      std::stop_source source;
      std::thread stopper([&source] { source.request_stop(); });
      static_cast<void>(
          here.loop.run(with_stop(source.get_token(), failure_of(here.names.get(), "nobody.invalid"))));
      stopper.join();
    }
    CHECK(test::open_descriptors() == before);
  }
}
