#pragma once

#include <headrace/coro/sync_wait.hpp>
#include <headrace/coro/with.hpp>
#include <headrace/stream/model.hpp>
#include <headrace/stream/runtime.hpp>

#include <support/checkpoint.hpp>
#include <sys/mman.h>
#include <torch/types.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace headrace::test {

/// Runs `work` on the test's own thread. After a minute it is stopped: a test that would hang
/// fails.
template <class T>
T run(task<T> work, std::stop_token stop = {}) {
  return sync_wait(with_timeout(std::chrono::seconds(60), std::move(work)), std::move(stop));
}

/// A model in a directory of its own, opened.
struct opened_model {
  temporary_directory place;
  std::unique_ptr<runtime> engine = std::make_unique<runtime>(runtime_options{.threads = 1});
  std::optional<model> opened;

  explicit opened_model(const std::vector<wanted_tensor>& tensors) {
    place.write("model.safetensors", safetensors_file(tensors));
    opened = run(open(*engine, place.path()));
  }
};

/// The bytes that a dense tensor in host memory holds.
[[nodiscard]] inline std::string bytes_of(const ::torch::Tensor& from) {
  const ::torch::Tensor dense = from.contiguous();
  return {static_cast<const char*>(dense.const_data_ptr()), dense.nbytes()};
}

/// doctest cannot print torch's names of types.
[[nodiscard]] inline bool has_type(const ::torch::Tensor& one, ::torch::ScalarType type) {
  return one.scalar_type() == type;
}

/// Whether any page that lies wholly in `[from, from + size)` is in memory: false once a large
/// block has gone back to the system.
[[nodiscard]] inline bool resident(const void* from, std::size_t size) {
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = (reinterpret_cast<std::uintptr_t>(from) + page - 1) / page * page;
  const auto end = (reinterpret_cast<std::uintptr_t>(from) + size) / page * page;
  std::vector<unsigned char> pages((end - begin) / page);
  if (::mincore(reinterpret_cast<void*>(begin), end - begin, pages.data()) != 0) return false;
  return std::ranges::any_of(pages, [](unsigned char flags) { return (flags & 1U) != 0; });
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

}  // namespace headrace::test
