#pragma once

#include <headrace/base/trace.hpp>
#include <headrace/coro/async_generator.hpp>
#include <headrace/coro/task.hpp>
#include <headrace/safetensors/tensor_info.hpp>
#include <headrace/storage/object_entry.hpp>
#include <headrace/storage/storage_options.hpp>
#include <headrace/stream/runtime.hpp>
#include <headrace/stream/stream_options.hpp>
#include <headrace/stream/tensor.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace headrace {

/// How to reach a model and how patient to be.
struct open_options {
  storage_options storage = {};

  std::size_t chunk_size = 16_MiB;  ///< The most bytes of one request; at least 64 KiB.
  unsigned max_concurrency =
      32;  ///< The most connections; fewer are opened where more do not help.

  std::chrono::milliseconds connect_limit{5'000};  ///< Until a connection stands.
  std::chrono::milliseconds stall_limit{
      20'000};  ///< Below 1 KiB/s for this long: aborted and resumed.
  std::chrono::milliseconds deadline{
      0};                ///< For `open`, for each stream, for each `read_file`; 0: none.
  unsigned retries = 5;  ///< Of one range, without progress in between.

  std::shared_ptr<headrace::trace> trace = {};  ///< Receives the spans of requests and tensors.
};

/// A file of a model.
struct file_info {
  std::string name;
  std::uint64_t bytes = 0;         ///< Of the whole file.
  std::uint64_t header_bytes = 0;  ///< Length field and header: where the data begins.
  std::vector<std::pair<std::string, std::string>>
      metadata;  ///< `__metadata__`, as it stands there.
};

/// What a model has cost so far, over all its streams.
struct model_statistics {
  std::uint64_t requests = 0;  ///< HTTP requests; reads of local files.
  std::uint64_t retries = 0;
  std::uint64_t bytes = 0;  ///< Received, headers and index included.
  std::optional<std::chrono::steady_clock::time_point> first_request;
};

namespace detail {
class model_state;
}

/// An opened checkpoint: an immutable catalogue of its files and tensors. Cheap to copy: copies
/// share it. Threads: any. May outlive the runtime; then streams end with `cancelled`.
class model {
 public:
  /// The tensors, by file and by their place in it. `tensor_info::file` is an index into `files()`.
  [[nodiscard]] std::span<const tensor_info> tensors() const noexcept;
  [[nodiscard]] std::span<const file_info> files() const noexcept;

  /// The tensor of this name; null where there is none.
  [[nodiscard]] const tensor_info* find(std::string_view name) const noexcept;

  /// Bytes of all tensors.
  [[nodiscard]] std::uint64_t total_bytes() const noexcept;

  /// Where it is, for messages: without secrets.
  [[nodiscard]] const std::string& uri() const noexcept;

  /// Streams the tensors. Nothing happens before the first `next()`. Many streams at once are
  /// allowed; each has its own limits.
  ///
  ///     auto tensors = model.stream({.memory_limit = 512_MiB});
  ///     while (auto* t = co_await tensors.next()) use(t->name(), t->bytes());
  ///
  /// Errors, thrown by `next()`: `invalid_request` (a limit below the chunk size, a slice out of
  /// bounds), `not_found` (a selection that names nothing), `unsupported` (a device that this build
  /// or machine lacks), those of the store, `cancelled`, `timeout`.
  [[nodiscard]] async_generator<tensor> stream(stream_options options = {}) const;

  /// Reads a small file next to the weights (config.json and the like), at most 256 MiB. Errors:
  /// `not_found`, those of the store.
  [[nodiscard]] task<std::vector<std::byte>> read_file(std::string_view name) const;

  /// Lists the files under the model's location, at any depth, weights included, sorted by name.
  /// What it names can be read by `read_file`. Errors: `unsupported` where the store cannot list (a
  /// web server), those of the store.
  [[nodiscard]] task<std::vector<object_entry>> list_files() const;

  [[nodiscard]] model_statistics statistics() const noexcept;

  explicit model(std::shared_ptr<const detail::model_state> state) noexcept
      : state_(std::move(state)) {}

 private:
  std::shared_ptr<const detail::model_state> state_;
};

/// Opens the checkpoint at `uri`: `s3://bucket/prefix`, `http://host/directory`, a local directory,
/// or a single `.safetensors` object.
///
/// Reads and checks the index, if there is one, and the header of every file, all at once; no
/// weights but the first bytes that come along. Runs on a loop of the runtime and resumes on the
/// awaiter's executor. Throws `headrace::error`: `not_found` (no such place, no safetensors files
/// in it, a file that the index names and the store lacks), `invalid_safetensors`, `unsupported`
/// (an unknown scheme), `invalid_request`, `access_denied`, those of the connection.
///
///     headrace::model model = co_await headrace::open(runtime, "s3://bucket/qwen2-1.5b");
[[nodiscard]] task<model> open(runtime& runtime, std::string uri, open_options options = {});

}  // namespace headrace
