#pragma once

#include <headrace/asio.hpp>

#include <boost/asio/io_context.hpp>
#include <doctest/doctest.h>
#include <support/checkpoint.hpp>

#include <chrono>
#include <exception>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace headrace::test {

/// Runs `context` until it has nothing left to do; false after a minute: a test that would hang
/// fails.
[[nodiscard]] inline bool run_to_end(boost::asio::io_context& context) {
  context.run_for(std::chrono::seconds(60));
  return context.stopped();
}

/// The same by several threads.
[[nodiscard]] inline bool run_to_end(boost::asio::io_context& context, unsigned threads) {
  {
    std::vector<std::jthread> running;
    for (unsigned number = 0; number < threads; ++number)
      running.emplace_back([&context] { context.run_for(std::chrono::seconds(60)); });
  }
  return context.stopped();
}

/// What a failure was; `errc{}`: none.
[[nodiscard]] inline errc kind_of(const std::exception_ptr& failure) {
  return failure ? asio::error_of(failure).kind() : errc{};
}

/// Polls `holds` until it is true or a limit that only a broken program reaches.
template <class Condition>
[[nodiscard]] bool eventually(Condition holds) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!holds()) {
    if (std::chrono::steady_clock::now() > limit) return false;
    std::this_thread::yield();
  }
  return true;
}

/// Whether `from` holds the bytes that a tensor of its name has.
[[nodiscard]] inline bool right(const tensor& from) {
  const auto bytes = from.bytes();
  return std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()) ==
         content_of(from.name(), bytes.size());
}

/// A small model in a folder of its own.
struct model_on_disk {
  explicit model_on_disk(checkpoint given = small_model()) : expected(std::move(given)) {
    place.write(expected);
  }
  [[nodiscard]] std::string uri() const { return place.path(); }

  checkpoint expected;
  temporary_directory place;
};

}  // namespace headrace::test
