#pragma once

#include "storage/http_attempts.hpp"
#include "storage/http_object_store.hpp"
#include "storage/object_version.hpp"

#include <headrace/storage/range_source.hpp>

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

namespace headrace {

/// The one place where HTTP answers become bytes: see `range_source` for what it promises.
class http_range_source final : public range_source {
 public:
  http_range_source(std::shared_ptr<http_object_store> store, std::string name);

  task<result<std::size_t>> open(storage_loop& loop, const transfer& terms,
                                 std::span<std::byte> into) override;
  task<result<void>> read(storage_loop& loop, const transfer& terms, byte_range range,
                          range_sink& sink) override;
  [[nodiscard]] std::uint64_t size() const noexcept override;
  [[nodiscard]] const std::string& uri() const noexcept override { return uri_; }

 private:
  class range_exchange;

  /// Where a redirect led to. The target may hold a signature: it appears in no message.
  struct redirected {
    http_origin origin;
    std::string target;

    friend bool operator==(const redirected&, const redirected&) = default;
  };

  /// The version that requests have to be for: what `If-Match` and a generation come from. Nothing
  /// where a redirect has pinned it: whoever serves the object does not know it by that.
  [[nodiscard]] std::optional<object_version> pin() const;

  /// Whether an answer with bytes of the object has been compared: from then on 404 and 416 mean
  /// that it changed.
  [[nodiscard]] bool pinned() const;

  /// Compares with the pin; the first answer is it.
  [[nodiscard]] attempt_result check_version(const http_answer& answer, std::uint64_t total,
                                             const http_origin& origin);

  /// Compares what a redirect tells with the pin; the first one is it.
  [[nodiscard]] attempt_result check_redirect(const http_answer& answer,
                                              const object_version& told);

  [[nodiscard]] std::optional<redirected> redirection() const;
  void redirect(redirected to);

  /// Forgets `refused`, if nobody has found another way since. Whether it was the way until now.
  bool forget(const redirected& refused);

  const std::shared_ptr<http_object_store> store_;
  const std::string name_;
  const std::string uri_;

  mutable std::mutex mutex_;
  std::optional<object_version> pin_;             // set once
  bool pinned_by_redirect_ = false;               // set once
  bool compared_ = false;                         // set once
  std::map<http_origin, object_version> served_;  // pinned by redirect: how each origin names it
  std::optional<redirected> redirected_;          // remembered until it is refused
};

}  // namespace headrace
