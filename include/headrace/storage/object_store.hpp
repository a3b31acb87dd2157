#pragma once

#include <headrace/base/result.hpp>
#include <headrace/base/uri.hpp>
#include <headrace/coro/task.hpp>
#include <headrace/storage/credential_report.hpp>
#include <headrace/storage/object_entry.hpp>
#include <headrace/storage/range_source.hpp>
#include <headrace/storage/storage_options.hpp>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace headrace {

/// A place in a store: a prefix, a directory, or a single object. Maps names to requests; policy is
/// `range_source`'s.
///
/// Threads: any.
class object_store {
 public:
  virtual ~object_store() = default;

  /// Whether the store can tell what lies under the location. Plain HTTP cannot.
  [[nodiscard]] virtual bool lists() const noexcept = 0;

  /// What lies directly under the location, sorted by name. Empty where nothing does. `unsupported`
  /// where the store does not list.
  [[nodiscard]] virtual task<result<std::vector<object_entry>>> list(storage_loop& loop,
                                                                     const transfer& terms) = 0;

  /// What lies under the location at any depth, sorted by name; names hold a `/` for each level.
  /// Errors as `list`.
  [[nodiscard]] virtual task<result<std::vector<object_entry>>> list_all(storage_loop& loop,
                                                                         const transfer& terms) = 0;

  /// The object `name`, relative to the location; with a single object, its own name. Nothing is
  /// asked yet.
  [[nodiscard]] virtual std::shared_ptr<range_source> source(std::string_view name) = 0;

  /// The name of the object that the location is, where it is one and not a prefix: where it ends
  /// with `.safetensors`.
  [[nodiscard]] virtual const std::string& single() const noexcept = 0;

  /// Which credentials requests carry, and where they were found; fetches them where that takes a
  /// request. Errors: those that reading from the store would have.
  [[nodiscard]] virtual task<result<credential_report>> credentials(storage_loop& loop) {
    static_cast<void>(loop);
    co_return credential_report{
        .source = "none: this store takes none", .identity = {}, .expires = {}, .details = {}};
  }

  /// The location, for messages.
  [[nodiscard]] virtual const std::string& location() const noexcept = 0;
};

/// The store of `location`. Asks nothing yet. Errors: `unsupported` for an unknown scheme, naming
/// those that are known; `invalid_request` for a location that is none.
///
///     auto store = open_store("s3://models/minilm", {});
[[nodiscard]] result<std::shared_ptr<object_store>> open_store(std::string_view location,
                                                               const storage_options& options);

}  // namespace headrace
