// libFuzzer target: any bytes are refused with `protocol_error`, are not enough, or give a head and
// a chunked body. However they are cut, the outcome is the same.

#include "http/response_parser.hpp"

#include <headrace/base/assert.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace {

struct outcome {
  bool refused = false;
  bool complete = false;
  int status = 0;
  std::string fields;
  std::string body;
  std::size_t used = 0;

  friend bool operator==(const outcome&, const outcome&) = default;
};

std::string fields_of(const headrace::http_response_head& head) {
  std::string text(head.reason());
  for (std::size_t at = 0; at < head.field_count(); ++at) {
    const auto [name, value] = head.field_at(at);
    text.append("\n").append(name).append(":").append(value);
  }
  return text;
}

bool is_refusal(const headrace::error& reason) {
  return reason.kind() == headrace::errc::protocol_error;
}

outcome parse(std::span<const char> bytes, std::size_t step, bool head_request) {
  outcome seen;
  headrace::detail::response_parser parser;
  parser.begin(head_request);
  while (!parser.head_complete() && seen.used < bytes.size()) {
    const auto piece = bytes.subspan(seen.used, std::min(step, bytes.size() - seen.used));
    const auto used = parser.parse_head(piece);
    if (!used) {
      HEADRACE_ASSERT(is_refusal(used.error()));
      return outcome{.refused = true};
    }
    HEADRACE_ASSERT(*used == piece.size() || parser.head_complete());
    seen.used += *used;
  }
  if (!parser.head_complete()) return seen;
  const auto head = parser.take_head();
  seen.complete = true;
  seen.status = head.status();
  seen.fields = fields_of(head);
  HEADRACE_ASSERT(head.status() >= 200);
  HEADRACE_ASSERT(!head.chunked() || !head.content_length());
  if (!head.chunked() || head.body_size()) return seen;

  std::string room(step, '\0');
  while (!parser.body_complete() && seen.used < bytes.size()) {
    const auto piece = bytes.subspan(seen.used, std::min(step, bytes.size() - seen.used));
    const iovec into{room.data(), piece.size()};
    const auto taken = parser.parse_chunks(piece, {&into, 1});
    if (!taken) {
      HEADRACE_ASSERT(is_refusal(taken.error()));
      return outcome{.refused = true};
    }
    HEADRACE_ASSERT(taken->consumed == piece.size() || parser.body_complete());
    HEADRACE_ASSERT(taken->produced <= taken->consumed);
    seen.used += taken->consumed;
    seen.body.append(room, 0, taken->produced);
  }
  return seen;
}

}  // namespace

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer's name
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  // The first byte says how.
  const bool head_request = (data[0] & 1) != 0;
  const std::size_t step = 1 + data[0] / 2;
  const std::span bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  HEADRACE_ASSERT(parse(bytes, bytes.size() + 1, head_request) == parse(bytes, step, head_request));
  return 0;
}
