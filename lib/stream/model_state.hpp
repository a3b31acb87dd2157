#pragma once

#include "stream/catalogue.hpp"
#include "stream/runtime_state.hpp"

#include <headrace/storage/object_store.hpp>
#include <headrace/storage/transfer.hpp>
#include <headrace/stream/model.hpp>

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace headrace::detail {

/// The first bytes of each file, as `open` read them: the first stream uses them instead of asking
/// again.
struct speculative_bytes {
  std::vector<std::vector<std::byte>> of_file;

  [[nodiscard]] std::uint64_t total() const noexcept {
    std::uint64_t sum = 0;
    for (const auto& bytes : of_file) sum += bytes.size();
    return sum;
  }
};

/// An opened checkpoint.
class model_state {
 public:
  std::shared_ptr<runtime_state> runtime;
  std::shared_ptr<object_store> store;
  open_options options;
  transfer terms;  ///< Without a deadline: each use sets its own.
  catalogue contents;
  std::vector<std::shared_ptr<range_source>> sources;  ///< By file.

  /// The limits of something that begins now.
  [[nodiscard]] transfer terms_from(steady_time now) const {
    transfer fresh = terms;
    if (options.deadline.count() > 0) fresh.limits.deadline = now + options.deadline;
    return fresh;
  }

  /// Empty but for the first caller. Threads: any.
  [[nodiscard]] std::optional<speculative_bytes> take_speculative() const {
    const std::lock_guard lock(mutex_);
    return std::exchange(speculative_, std::nullopt);
  }
  void keep_speculative(speculative_bytes bytes) { speculative_ = std::move(bytes); }

 private:
  mutable std::mutex mutex_;
  mutable std::optional<speculative_bytes> speculative_;
};

}  // namespace headrace::detail
