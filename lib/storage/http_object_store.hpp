#pragma once

#include "storage/object_version.hpp"

#include <headrace/base/byte_range.hpp>
#include <headrace/http/http_request.hpp>
#include <headrace/http/http_response_head.hpp>
#include <headrace/http/http_route.hpp>
#include <headrace/storage/object_store.hpp>
#include <headrace/storage/retry_policy.hpp>

#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace headrace {

/// What a store has made a request with, for it to know again when the request is refused: keys, a
/// region. Others have learned more in the meantime.
struct request_basis {
  virtual ~request_basis() = default;
};

/// A request and whom to send it to.
struct addressed_request {
  http_route route;
  http_request request;
  std::shared_ptr<const request_basis> basis{};  ///< Null where the store needs none.
};

/// What a range source wants of a store.
struct object_request {
  std::string name;                   ///< Relative to the location.
  std::string range;                  ///< The value of `Range`.
  std::optional<object_version> pin;  ///< The version that the answer has to be of.
};

/// `Range`, and `If-Match` where the pin is a strong tag: how plain HTTP asks for a part of a
/// version.
[[nodiscard]] http_fields range_fields(const object_request& wanted);

/// What a store's refusal means.
struct store_refusal {
  failure_class what = failure_class::fatal;
  errc kind = errc::unavailable;
  std::string code;     ///< The store's own.
  std::string message;  ///< The store's own words, bounded, or empty.
  std::string request_id;
  bool ask_again = false;  ///< The store learned something from it (another region): the same
                           ///< request, made anew, may succeed.
};

/// What a store that speaks HTTP has to know: how its requests look and what its refusals mean. One
/// file a store.
///
/// Threads: any; implementations lock what they learn.
class http_object_store : public object_store,
                          public std::enable_shared_from_this<http_object_store> {
 public:
  /// A signed GET of an object's part. A coroutine since credentials may have to be fetched.
  [[nodiscard]] virtual task<result<addressed_request>> get(storage_loop& loop,
                                                            object_request wanted) = 0;

  /// Which version of an object an answer came from.
  [[nodiscard]] virtual object_version version_of(const http_response_head& head,
                                                  std::uint64_t total) const {
    return object_version::of(head, total);
  }

  /// What a redirect tells of the object that it leads to, where the store pins by that (the Hub).
  /// Those who serve the object then need not name its version as the store does: their answers are
  /// compared with its size, and with each other's by origin. Nothing: redirects tell nothing.
  [[nodiscard]] virtual std::optional<object_version> version_of_redirect(
      const http_response_head& head) const {
    static_cast<void>(head);
    return std::nullopt;
  }

  /// How connections to the store, and to where it redirects, are made.
  [[nodiscard]] virtual std::shared_ptr<const network_settings> network() const noexcept = 0;

  /// Reads a refusal: an answer other than 200, 206, 304, 412, 416, or a redirect that is the
  /// store's own. May learn from it.
  [[nodiscard]] virtual store_refusal refused(const http_response_head& head, std::string_view body,
                                              bool pinned) = 0;

  /// The same for a request that was made with `basis`; null where it was made with none.
  [[nodiscard]] virtual store_refusal refused_with(const request_basis* basis,
                                                   const http_response_head& head,
                                                   std::string_view body, bool pinned) {
    static_cast<void>(basis);
    return refused(head, body, pinned);
  }

  /// Whether a 301 or 307 is the store's own business (S3's regions) rather than a redirect to
  /// follow.
  [[nodiscard]] virtual bool owns_redirect(const http_response_head& head) const noexcept = 0;

  /// The user's and the store's fields for a request that a redirect has led to `origin`: none but
  /// where that is the store's own.
  [[nodiscard]] virtual http_fields fields_for(const http_origin& origin) const {
    static_cast<void>(origin);
    return {};
  }

  [[nodiscard]] std::shared_ptr<range_source> source(std::string_view name) final;

  /// The URI of `name`, for messages.
  [[nodiscard]] virtual std::string uri_of(std::string_view name) const = 0;
};

/// The stores, one constructor each.
[[nodiscard]] result<std::shared_ptr<object_store>> make_s3_store(const uri& location,
                                                                  const storage_options& options);
[[nodiscard]] result<std::shared_ptr<object_store>> make_azure_store(
    const uri& location, const storage_options& options);
[[nodiscard]] result<std::shared_ptr<object_store>> make_gcs_store(const uri& location,
                                                                   const storage_options& options);
[[nodiscard]] result<std::shared_ptr<object_store>> make_hub_store(const uri& location,
                                                                   const storage_options& options);
[[nodiscard]] result<std::shared_ptr<object_store>> make_http_store(const uri& location,
                                                                    const storage_options& options);
[[nodiscard]] result<std::shared_ptr<object_store>> make_file_store(const uri& location,
                                                                    const storage_options& options);

}  // namespace headrace
