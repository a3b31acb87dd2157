#pragma once

#include <headrace/http/tcp_connector.hpp>
#include <headrace/io/resolver.hpp>
#include <headrace/storage/object_store.hpp>
#include <headrace/storage/range_source.hpp>
#include <headrace/storage/transfer.hpp>

#include <doctest/doctest.h>
#include <support/scripted_server.hpp>
#include <support/test_loop.hpp>

#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace headrace::test {

/// All that a store needs of a loop, on the test's own thread. Patient: a test sets the limits that
/// it wants to meet.
struct storage_client : test_loop {
  resolver names{loop};
  tcp_connector connector{loop, names};
  http_pool pool{loop, connector};
  token_buckets buckets;
  std::unique_ptr<random_source> random = make_random_source(1);
  storage_loop services{loop, pool, buckets, *random};
  transfer terms;

  storage_client() {
    terms.limits.shortest_pause = std::chrono::milliseconds(1);
    terms.limits.stall_limit = std::chrono::seconds(60);
  }

  [[nodiscard]] std::uint64_t retries() const { return terms.statistics->retries.load(); }

  /// The object `name` at `location`.
  [[nodiscard]] static std::shared_ptr<range_source> source(const std::string& location,
                                                            std::string_view name,
                                                            const storage_options& options = {}) {
    auto store = open_store(location, options);
    REQUIRE_MESSAGE(store, location);
    return (*store)->source(name);
  }

  /// Opens `from` and gives its first bytes, `most` of them where there are as many.
  [[nodiscard]] result<std::string> open(range_source& from, std::size_t most = 65'536) {
    std::string first(most, '\0');
    auto opened = run(from.open(services, terms, std::as_writable_bytes(std::span(first))));
    if (!opened) return failure{opened.error()};
    first.resize(*opened);
    return first;
  }

  [[nodiscard]] result<std::string> read(range_source& from, std::uint64_t begin,
                                         std::size_t size) {
    std::string bytes(size, '\0');
    buffer_sink sink(std::as_writable_bytes(std::span(bytes)));
    auto done = run(from.read(services, terms, {begin, size}, sink));
    if (!done) return failure{done.error()};
    CHECK(sink.filled() == size);
    return bytes;
  }
};

[[nodiscard]] inline bool says(const error& failed, std::string_view part) {
  return std::string_view(failed.what()).find(part) != std::string_view::npos;
}

}  // namespace headrace::test
