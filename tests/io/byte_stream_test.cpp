#include <headrace/io/byte_stream.hpp>

#include "raw_peer.hpp"

#include <headrace/base/error.hpp>

#include <doctest/doctest.h>
#include <support/loop_thread.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

using namespace headrace;
using namespace std::chrono_literals;

namespace {

using stream_pointer = std::unique_ptr<byte_stream>;

task<stream_pointer> connect(io_context* loop, std::vector<endpoint> addresses,
                             std::chrono::nanoseconds limit) {
  auto connected = co_await connect_tcp(*loop, std::move(addresses), limit);
  co_return std::move(connected).value();
}

task<errc> connect_kind(io_context* loop, std::vector<endpoint> addresses,
                        std::chrono::nanoseconds limit) {
  auto connected = co_await connect_tcp(*loop, std::move(addresses), limit);
  co_return connected ? errc{} : kind_of(connected.error());
}

task<std::string> ask(stream_pointer to, std::string text, bool* stale) {
  auto sent = co_await to->send(std::as_bytes(std::span(text)));
  std::move(sent).value();
  std::array<std::byte, 100> memory{};
  const iovec buffer = as_buffer(memory);
  auto received = co_await to->receive({&buffer, 1});
  const auto count = std::move(received).value();
  *stale = to->stale();
  co_return std::string(reinterpret_cast<const char*>(memory.data()), count);
}

/// What is there at once, `none` where nothing is.
task<std::string> try_receive(byte_stream* from) {
  std::array<char, 3> first{};
  std::array<char, 100> rest{};
  const std::array<iovec, 2> buffers{iovec{first.data(), first.size()},
                                     iovec{rest.data(), rest.size()}};
  auto received = from->try_receive(buffers);
  if (!received) {
    const bool nothing = received.error() == std::errc::resource_unavailable_try_again;
    co_return nothing ? "none" : received.error().message();
  }
  const std::size_t head = std::min(*received, first.size());
  co_return std::string(first.data(), head) + std::string(rest.data(), *received - head);
}

task<> wait_until_stale(byte_stream* watched) {
  while (!watched->stale()) co_await sleep_for(1ms);
}

task<bool> is_stale(byte_stream* watched) { co_return watched->stale(); }

task<> drop(stream_pointer dropped) {
  const stream_pointer here = std::move(dropped);
  co_return;
}

endpoint nobody() {
  const test::raw_listener closed;
  return closed.local();
}

/// Its queue is full and nobody accepts: a connection to it never stands.
class full_listener {
 public:
  full_listener() : listener_(0) {
    const endpoint local = listener_.local();
    for (int at = 0; at < 16; ++at) {
      const int number = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
      REQUIRE(number >= 0);
      static_cast<void>(::connect(number, local.data(), local.size()));
      waiting_.emplace_back(number);
    }
  }
  [[nodiscard]] endpoint local() const { return listener_.local(); }

 private:
  test::raw_listener listener_;
  std::vector<test::raw_peer> waiting_;
};

}  // namespace

TEST_SUITE("unit") {
  TEST_CASE("a stream sends, receives and knows its peer") {
    test::loop_thread loop;
    const test::raw_listener listener;
    auto stream = loop.run(connect(&loop.context(), {listener.local()}, 10s));
    auto far = listener.accept();
    CHECK(stream->peer() == listener.local().to_string());
    std::thread echo([&far] { far.send(far.receive(5)); });
    bool stale = true;
    CHECK(loop.run(ask(std::move(stream), "hello", &stale)) == "hello");
    CHECK(!stale);
    echo.join();
  }

  TEST_CASE("what is there is received without waiting") {
    test::loop_thread loop;
    const test::raw_listener listener;
    auto stream = loop.run(connect(&loop.context(), {listener.local()}, 10s));
    auto far = listener.accept();
    CHECK(loop.run(try_receive(stream.get())) == "none");
    for (int again = 0; again < 3; ++again) {
      far.send("hello");
      loop.run(wait_until_stale(stream.get()));
      CHECK(loop.run(try_receive(stream.get())) == "hello");
      CHECK(loop.run(try_receive(stream.get())) == "none");
    }
    far.close();
    loop.run(wait_until_stale(stream.get()));
    CHECK(loop.run(try_receive(stream.get())).empty());
    loop.run(drop(std::move(stream)));
  }

  TEST_CASE("an idle stream is stale once the peer has spoken or gone") {
    test::loop_thread loop;
    const test::raw_listener listener;
    for (int way = 0; way < 3; ++way) {
      auto stream = loop.run(connect(&loop.context(), {listener.local()}, 10s));
      auto far = listener.accept();
      CHECK(!loop.run(is_stale(stream.get())));
      if (way == 0) far.send("x");
      if (way == 1) far.close();
      if (way == 2) far.reset();
      loop.run(wait_until_stale(stream.get()));
      loop.run(drop(std::move(stream)));
    }
  }

  TEST_CASE("the first address that answers is taken") {
    test::loop_thread loop;
    const test::raw_listener listener;
    auto stream = loop.run(connect(&loop.context(), {nobody(), nobody(), listener.local()}, 10s));
    CHECK(stream->peer() == listener.local().to_string());
    loop.run(drop(std::move(stream)));
  }

  TEST_CASE("an address that does not answer in time is passed over") {
    test::loop_thread loop;
    const full_listener silent;
    const test::raw_listener listener;
    auto stream = loop.run(connect(&loop.context(), {silent.local(), listener.local()}, 50ms));
    CHECK(stream->peer() == listener.local().to_string());
    loop.run(drop(std::move(stream)));
  }

  TEST_CASE("where nobody answers, the last error is given") {
    test::loop_thread loop;
    const full_listener silent;
    CHECK(loop.run(connect_kind(&loop.context(), {nobody()}, 10s)) == errc::connect_error);
    CHECK(loop.run(connect_kind(&loop.context(), {}, 10s)) == errc::connect_error);
    CHECK(loop.run(connect_kind(&loop.context(), {nobody(), silent.local()}, 20ms)) ==
          errc::timeout);
    CHECK(loop.run(connect_kind(&loop.context(), {silent.local(), nobody()}, 20ms)) ==
          errc::connect_error);
  }

  TEST_CASE("a stop while connecting is cancelled, and no further address is tried") {
    test::loop_thread loop;
    const full_listener silent;
    const test::raw_listener listener;
    std::stop_source source;
    std::thread stopper([&source] { source.request_stop(); });
    CHECK(loop.run(with_stop(source.get_token(),
                             connect_kind(&loop.context(), {silent.local(), listener.local()},
                                          std::chrono::nanoseconds::max()))) == errc::cancelled);
    stopper.join();
  }

  TEST_CASE("connecting leaks no descriptor, however it ends") {
    test::loop_thread loop;
    const full_listener silent;
    const test::raw_listener listener;
    CHECK(loop.run(connect_kind(&loop.context(), {nobody()}, 10s)) == errc::connect_error);
    const auto before = test::open_descriptors();
    CHECK(loop.run(connect_kind(&loop.context(), {nobody(), silent.local()}, 5ms)) ==
          errc::timeout);
    CHECK(loop.run(connect_kind(&loop.context(), {silent.local(), nobody()}, 5ms)) ==
          errc::connect_error);
    loop.run(drop(loop.run(connect(&loop.context(), {listener.local()}, 10s))));
    CHECK(test::open_descriptors() == before);
  }
}
