#pragma once

#include <headrace/base/export.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace headrace {

namespace detail {
class response_parser;
}

/// Status line and header fields of an answer whose framing has been checked. Movable, owning.
///
/// Where a field occurs more than once, the first one counts. Fields that must not (Content-Length,
/// Content-Range, ETag, Last-Modified, Location, Transfer-Encoding) have made the answer a
/// `protocol_error` before anybody sees this.
class HEADRACE_API http_response_head {
 public:
  http_response_head() = default;
  http_response_head(http_response_head&& other) noexcept = default;
  http_response_head& operator=(http_response_head&& other) noexcept = default;

  [[nodiscard]] int status() const noexcept { return status_; }
  [[nodiscard]] std::string_view reason() const noexcept;

  /// The value of the first field of this name, in any case, without white space around it. Nothing
  /// where there is none. The view is the head's.
  [[nodiscard]] std::optional<std::string_view> field(std::string_view name) const noexcept;

  /// How many fields there are, and the one at `index`: name as it was received, and value.
  [[nodiscard]] std::size_t field_count() const noexcept { return fields_.size(); }
  [[nodiscard]] std::pair<std::string_view, std::string_view> field_at(
      std::size_t index) const noexcept;

  /// The value of Content-Length. That of an answer without a body (to HEAD, 304) is what the body
  /// would have had.
  [[nodiscard]] std::optional<std::uint64_t> content_length() const noexcept {
    return content_length_;
  }

  /// Whether the body comes in chunks: its end is told by the peer, its size is not.
  [[nodiscard]] bool chunked() const noexcept { return chunked_; }

  /// Whether the body ends where the peer closes: nobody can tell a whole one from one that was cut
  /// short. Where its size matters, count (Content-Range) or refuse.
  [[nodiscard]] bool ends_at_close() const noexcept { return ends_at_close_; }

  /// Whether the peer will take another request after the body.
  [[nodiscard]] bool keep_alive() const noexcept { return keep_alive_; }

  /// Whether the body is encoded (gzip, …) although identity was asked for: only with a status of
  /// 300 and above, where `read_text` skips it; a successful answer that is encoded is refused.
  [[nodiscard]] bool encoded() const noexcept { return encoded_; }

  /// How long the body that follows is: 0 where there is none, nothing where only its end will
  /// tell.
  [[nodiscard]] std::optional<std::uint64_t> body_size() const noexcept;

 private:
  friend detail::response_parser;

  struct entry {
    std::uint32_t name;
    std::uint32_t name_size;
    std::uint32_t value;
    std::uint32_t value_size;
  };

  std::string text_;  ///< Reason, names and values: one allocation.
  std::uint32_t reason_size_ = 0;
  std::vector<entry> fields_;
  int status_ = 0;
  std::optional<std::uint64_t> content_length_;
  bool has_body_ = true;
  bool chunked_ = false;
  bool ends_at_close_ = false;
  bool keep_alive_ = false;
  bool encoded_ = false;
};

}  // namespace headrace
