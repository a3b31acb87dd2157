#pragma once

#include <headrace/base/result.hpp>
#include <headrace/http/http_response_head.hpp>
#include <headrace/io/buffer_sequence.hpp>

#include <llhttp.h>

#include <cstddef>
#include <span>
#include <string_view>

namespace headrace::detail {

/// Heads and chunks of answers: llhttp, and what it leaves to its users (limits, fields that
/// contradict each other, strictness that does not depend on its version).
///
/// Does no I/O and knows no connection. Errors are `protocol_error` without context. After one it
/// is of no use until `begin`.
class response_parser {
 public:
  static constexpr std::size_t max_head =
      64 * 1024;  ///< Bytes of heads before a body, those of 1xx answers included.
  static constexpr std::size_t max_fields = 100;  ///< Of one head.
  static constexpr unsigned max_interim = 8;      ///< Answers of 1xx.
  static constexpr std::size_t max_framing =
      16 * 1024;  ///< Between two bytes of a chunked body, and after the last one.

  response_parser() noexcept;
  response_parser(const response_parser&) = delete;
  response_parser& operator=(const response_parser&) = delete;

  /// A request has been sent; `without_body` where that was HEAD.
  void begin(bool without_body);

  /// Takes bytes of the head, cut anywhere; gives how many belong to it. The others, if any, are
  /// the body's.
  [[nodiscard]] result<std::size_t> parse_head(std::span<const char> bytes);

  [[nodiscard]] bool head_complete() const noexcept { return head_complete_; }

  /// The head, once it is complete.
  [[nodiscard]] http_response_head take_head() noexcept { return std::move(head_); }

  struct progress {
    std::size_t consumed;  ///< Of the bytes given.
    std::size_t produced;  ///< Bytes of the body.
  };

  /// Takes bytes of a chunked body and copies what they carry to `destination`, which has room for
  /// as many bytes as are given.
  [[nodiscard]] result<progress> parse_chunks(std::span<const char> bytes,
                                              buffer_sequence destination);

  /// Whether the end of the chunked body was seen, trailers included.
  [[nodiscard]] bool body_complete() const noexcept { return body_complete_; }

 private:
  enum class place : unsigned char { head, body };

  struct callbacks;
  friend callbacks;

  void start_head();
  [[nodiscard]] bool strict(std::span<const char> bytes) noexcept;
  [[nodiscard]] error llhttp_failure(std::string_view while_doing) const;
  [[nodiscard]] result<void> finish_head();
  [[nodiscard]] result<void> check_fields();
  void count_framing(const char* until) noexcept;

  llhttp_t llhttp_;
  http_response_head head_;
  std::string_view problem_;  ///< What a callback found.
  std::size_t head_bytes_ = 0;
  unsigned interim_ = 0;
  place place_ = place::head;
  bool without_body_ = false;
  bool head_complete_ = false;
  bool body_complete_ = false;
  bool at_start_ = true;     ///< No byte of this head yet.
  bool field_ended_ = true;  ///< The next piece of a field's name begins another field.
  char previous_ = '\0';

  // While chunks are parsed.
  buffer_sequence destination_;
  std::size_t vector_ = 0;  ///< Where in `destination_` the next byte goes.
  std::size_t offset_ = 0;
  std::size_t produced_ = 0;
  std::size_t framing_ = 0;
  const char* framing_from_ = nullptr;
};

}  // namespace headrace::detail
