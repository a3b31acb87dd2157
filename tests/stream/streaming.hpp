#pragma once

#include <headrace/coro/sync_wait.hpp>
#include <headrace/coro/with.hpp>
#include <headrace/stream/model.hpp>
#include <headrace/stream/runtime.hpp>

#include <doctest/doctest.h>
#include <support/checkpoint.hpp>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace headrace::test {

/// Runs `work` on the test's own thread. After a minute it is stopped: a test that would hang
/// fails.
template <class T>
T run(task<T> work, std::stop_token stop = {}) {
  return sync_wait(with_timeout(std::chrono::seconds(60), std::move(work)), std::move(stop));
}

[[nodiscard]] inline std::string text_of(const tensor& from) {
  const auto bytes = from.bytes();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// Whether `from` is the tensor `wanted`, every byte of it.
[[nodiscard]] inline bool is(const tensor& from, const wanted_tensor& wanted,
                             std::uint64_t version = 0) {
  return from.name() == wanted.name && from.dtype() == wanted.dtype &&
         std::vector<std::uint64_t>(from.shape().begin(), from.shape().end()) == wanted.shape &&
         from.bytes().size() == wanted.size() &&
         text_of(from) == content_of(wanted.name, wanted.size(), version);
}

/// What a stream brought: names in the order of delivery.
struct delivered {
  std::vector<std::string> names;
  std::uint64_t bytes = 0;
  bool right = true;  ///< Every tensor is what `expected` says.
};

inline task<delivered> drain(async_generator<tensor>* tensors, const checkpoint* expected) {
  delivered all;
  while (auto* t = co_await tensors->next()) {
    all.names.emplace_back(t->name());
    all.bytes += t->bytes().size();
    const auto* const wanted = expected->find(t->name());
    if (wanted == nullptr || !is(*t, *wanted)) all.right = false;
  }
  co_await tensors->close();
  co_return all;
}

/// Streams all of `from` and compares.
[[nodiscard]] inline delivered stream_all(const model& from, const checkpoint& expected,
                                          stream_options options = {}) {
  auto tensors = from.stream(std::move(options));
  return run(drain(&tensors, &expected));
}

/// The kind of error that `work` throws; none: `std::nullopt`.
template <class Work>
[[nodiscard]] std::optional<error> failure_of(Work&& work) {
  try {
    std::forward<Work>(work)();
  } catch (const error& failed) {
    return failed;
  }
  return std::nullopt;
}

[[nodiscard]] inline std::size_t entries_of(const char* directory) {
  std::size_t count = 0;
  std::error_code failed;
  for (std::filesystem::directory_iterator it(directory, failed), end; !failed && it != end;
       it.increment(failed))
    ++count;
  return count;
}

/// Open descriptors and threads of this process. The kernel's own workers take a moment to leave.
struct process_counts {
  std::size_t descriptors = entries_of("/proc/self/fd");
  std::size_t threads = entries_of("/proc/self/task");

  [[nodiscard]] bool reached_again() const {
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    for (;;) {
      const process_counts now;
      if (now.descriptors <= descriptors && now.threads <= threads) return true;
      if (std::chrono::steady_clock::now() > limit) return false;
      std::this_thread::yield();
    }
  }
};

}  // namespace headrace::test
