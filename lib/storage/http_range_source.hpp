#pragma once

#include "storage/http_attempts.hpp"
#include "storage/http_object_store.hpp"
#include "storage/object_version.hpp"

#include <headrace/storage/range_source.hpp>

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
  };

  [[nodiscard]] std::optional<object_version> pin() const;

  /// Compares with the pin; the first answer is it.
  [[nodiscard]] attempt_result check_version(const http_answer& answer, std::uint64_t total);

  [[nodiscard]] std::optional<redirected> redirection() const;
  void redirect(std::optional<redirected> to);

  const std::shared_ptr<http_object_store> store_;
  const std::string name_;
  const std::string uri_;

  mutable std::mutex mutex_;
  std::optional<object_version> pin_;     // set once
  std::optional<redirected> redirected_;  // remembered until it is refused
};

}  // namespace headrace
