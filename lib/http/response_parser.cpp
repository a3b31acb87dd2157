#include "http/response_parser.hpp"

#include "http/text.hpp"

#include <headrace/base/assert.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <string>
#include <system_error>

namespace headrace::detail {
namespace {

// What a client decides by. Two of them, equal or not, are what a response-splitting attack or a
// broken proxy leaves behind.
constexpr std::array<std::string_view, 6> singletons{
    "Content-Length", "Content-Range", "ETag", "Last-Modified", "Location", "Transfer-Encoding"};

constexpr std::size_t usual_text = 1024;
constexpr std::size_t usual_fields = 24;

error refused(std::string_view what) {
  return error(errc::protocol_error,
               "the answer is not HTTP as it should be: " + std::string(what));
}

std::string_view trim_end(std::string_view text) noexcept {
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

}  // namespace

struct response_parser::callbacks {
  static response_parser& of(llhttp_t* from) noexcept {
    return *static_cast<response_parser*>(from->data);
  }

  static int stop(response_parser& self, std::string_view problem) noexcept {
    self.problem_ = problem;
    return HPE_USER;
  }

  static int status(llhttp_t* from, const char* at, std::size_t size) {
    auto& self = of(from);
    self.head_.text_.append(at, size);
    self.head_.reason_size_ = static_cast<std::uint32_t>(self.head_.text_.size());
    return 0;
  }

  static int field(llhttp_t* from, const char* at, std::size_t size) {
    auto& self = of(from);
    if (self.place_ != place::head) return 0;  // a trailer: bounded and ignored
    auto& fields = self.head_.fields_;
    // llhttp tells a name in as many pieces as it comes in, and its end; so a value that has begun
    // ends the name before.
    if (self.field_ended_) {
      if (fields.size() == max_fields) return stop(self, "more than 100 header fields");
      const auto here = static_cast<std::uint32_t>(self.head_.text_.size());
      fields.push_back({here, 0, here, 0});
      self.field_ended_ = false;
    }
    self.head_.text_.append(at, size);
    fields.back().name_size += static_cast<std::uint32_t>(size);
    return 0;
  }

  static int field_complete(llhttp_t* from) {
    auto& self = of(from);
    if (self.place_ != place::head || self.head_.fields_.empty()) return 0;
    self.head_.fields_.back().value = static_cast<std::uint32_t>(self.head_.text_.size());
    self.field_ended_ = true;
    return 0;
  }

  static int value(llhttp_t* from, const char* at, std::size_t size) {
    auto& self = of(from);
    if (self.place_ != place::head || self.head_.fields_.empty()) return 0;
    self.head_.text_.append(at, size);
    self.head_.fields_.back().value_size += static_cast<std::uint32_t>(size);
    return 0;
  }

  static int headers_complete(llhttp_t*) noexcept { return HPE_PAUSED; }

  static int body(llhttp_t* from, const char* at, std::size_t size) noexcept {
    auto& self = of(from);
    self.count_framing(at);
    if (self.framing_ > max_framing)
      return stop(self, "too much between two pieces of a chunked body");
    self.framing_ = 0;
    self.framing_from_ = at + size;
    while (size > 0) {
      const iovec& into = self.destination_[self.vector_];
      const std::size_t taken = std::min(size, into.iov_len - self.offset_);
      std::memcpy(static_cast<char*>(into.iov_base) + self.offset_, at, taken);
      at += taken;
      size -= taken;
      self.produced_ += taken;
      self.offset_ += taken;
      if (self.offset_ == into.iov_len) {
        ++self.vector_;
        self.offset_ = 0;
      }
    }
    return 0;
  }

  static int message_complete(llhttp_t* from) noexcept {
    of(from).body_complete_ = true;
    return HPE_PAUSED;
  }

  static llhttp_settings_t make() noexcept {
    llhttp_settings_t settings;
    llhttp_settings_init(&settings);
    settings.on_status = status;
    settings.on_header_field = field;
    settings.on_header_field_complete = field_complete;
    settings.on_header_value = value;
    settings.on_headers_complete = headers_complete;
    settings.on_body = body;
    settings.on_message_complete = message_complete;
    return settings;
  }

  // llhttp keeps a pointer to it.
  static const llhttp_settings_t& settings() noexcept {
    static const llhttp_settings_t made = make();
    return made;
  }
};

response_parser::response_parser() noexcept { std::memset(&llhttp_, 0, sizeof llhttp_); }

void response_parser::begin(bool without_body) {
  without_body_ = without_body;
  interim_ = 0;
  head_bytes_ = 0;
  start_head();
}

void response_parser::start_head() {
  llhttp_init(&llhttp_, HTTP_RESPONSE, &callbacks::settings());
  llhttp_.data = this;
  head_ = http_response_head();
  head_.text_.reserve(usual_text);
  head_.fields_.reserve(usual_fields);
  problem_ = {};
  place_ = place::head;
  field_ended_ = true;
  head_complete_ = false;
  body_complete_ = false;
  at_start_ = true;
  previous_ = '\0';
  framing_ = 0;
}

// llhttp refuses all of this with its lenient flags off; which version does what by default is not
// something to depend on.
bool response_parser::strict(std::span<const char> bytes) noexcept {
  for (const char c : bytes) {
    if (at_start_ && c != 'H') return false;
    at_start_ = false;
    if ((c == '\n') != (previous_ == '\r')) return false;
    if (previous_ == '\n' && (c == ' ' || c == '\t')) return false;
    if (is_control(c) && c != '\r' && c != '\n' && c != '\t') return false;
    previous_ = c;
  }
  return true;
}

error response_parser::llhttp_failure(std::string_view while_doing) const {
  if (!problem_.empty()) return refused(problem_);
  const char* const reason = llhttp_get_error_reason(&llhttp_);
  return refused(reason != nullptr && *reason != '\0' ? std::string_view(reason) : while_doing);
}

result<std::size_t> response_parser::parse_head(std::span<const char> bytes) {
  std::size_t used = 0;
  while (used < bytes.size() && !head_complete_) {
    const auto left = bytes.subspan(used);
    const auto piece = left.first(std::min(left.size(), max_head - head_bytes_));
    if (piece.empty()) return failure{refused("more than 64 KiB of header")};
    const llhttp_errno_t outcome = llhttp_execute(&llhttp_, piece.data(), piece.size());
    if (outcome != HPE_OK && outcome != HPE_PAUSED)
      return failure{llhttp_failure("malformed header")};
    const std::size_t taken =
        outcome == HPE_PAUSED
            ? static_cast<std::size_t>(llhttp_get_error_pos(&llhttp_) - piece.data())
            : piece.size();
    if (!strict(piece.first(taken))) {
      return failure{
          refused("a line that does not end in CR LF, is folded, or holds control characters")};
    }
    used += taken;
    head_bytes_ += taken;
    if (outcome == HPE_PAUSED) {
      auto finished = finish_head();
      if (!finished) return failure{std::move(finished).error()};
    }
  }
  return used;
}

result<void> response_parser::finish_head() {
  const int major = llhttp_get_http_major(&llhttp_);
  const int minor = llhttp_get_http_minor(&llhttp_);
  if (major != 1 || minor > 1)
    return failure{refused("a version other than HTTP/1.0 and HTTP/1.1")};
  head_.status_ = llhttp_get_status_code(&llhttp_);
  if (head_.status_ < 100 || head_.status_ > 999) return failure{refused("a status that is none")};
  if (head_.status_ == 101)
    return failure{refused("it switches to a protocol that nobody asked for")};
  if (head_.status_ < 200) {
    if (++interim_ > max_interim) return failure{refused("more than 8 interim answers (1xx)")};
    start_head();
    return {};
  }
  auto checked = check_fields();
  if (!checked) return checked;

  head_.has_body_ = !without_body_ && head_.status_ != 204 && head_.status_ != 304;
  head_.ends_at_close_ = head_.has_body_ && !head_.chunked_ && !head_.content_length_;
  const bool asks_close = (llhttp_.flags & F_CONNECTION_CLOSE) != 0;
  const bool asks_keep = (llhttp_.flags & F_CONNECTION_KEEP_ALIVE) != 0;
  head_.keep_alive_ = !asks_close && !head_.ends_at_close_ && (minor == 1 || asks_keep);
  head_complete_ = true;
  place_ = place::body;
  return {};
}

result<void> response_parser::check_fields() {
  std::array<bool, singletons.size()> seen{};
  for (auto& entry : head_.fields_) {
    const std::string_view text = head_.text_;
    const std::string_view name = text.substr(entry.name, entry.name_size);
    const std::string_view value = trim_end(text.substr(entry.value, entry.value_size));
    entry.value_size = static_cast<std::uint32_t>(value.size());

    const auto* const single =
        std::find_if(singletons.begin(), singletons.end(),
                     [name](std::string_view other) { return same_ignoring_case(name, other); });
    if (single != singletons.end()) {
      bool& before = seen[static_cast<std::size_t>(single - singletons.begin())];
      if (before) return failure{refused("more than one " + std::string(*single))};
      before = true;
    }
    if (same_ignoring_case(name, "Content-Length")) {
      std::uint64_t length = 0;
      const char* const end = value.data() + value.size();
      const auto read = std::from_chars(value.data(), end, length);
      if (read.ec != std::errc{} || read.ptr != end)
        return failure{refused("a Content-Length that is no number")};
      head_.content_length_ = length;
    } else if (same_ignoring_case(name, "Transfer-Encoding")) {
      if (!same_ignoring_case(value, "chunked"))
        return failure{refused("a Transfer-Encoding other than chunked")};
      head_.chunked_ = true;
    } else if (same_ignoring_case(name, "Content-Encoding")) {
      if (!value.empty() && !same_ignoring_case(value, "identity")) head_.encoded_ = true;
    }
  }
  if (head_.chunked_ && head_.content_length_)
    return failure{refused("Content-Length together with Transfer-Encoding")};
  if (head_.chunked_ && llhttp_get_http_minor(&llhttp_) == 0)
    return failure{refused("Transfer-Encoding in HTTP/1.0")};
  if (head_.encoded_ && head_.status_ < 300) {
    return failure{error(
        errc::protocol_error,
        "the body of the answer is compressed or otherwise encoded, although only identity was asked for")};
  }
  return {};
}

void response_parser::count_framing(const char* until) noexcept {
  framing_ += static_cast<std::size_t>(until - framing_from_);
  framing_from_ = until;
}

result<response_parser::progress> response_parser::parse_chunks(std::span<const char> bytes,
                                                                buffer_sequence destination) {
  HEADRACE_ASSERT(place_ == place::body && !body_complete_);
  HEADRACE_ASSERT(total_size(destination) >= bytes.size());
  destination_ = destination;
  vector_ = 0;
  offset_ = 0;
  produced_ = 0;
  framing_from_ = bytes.data();
  if (llhttp_get_errno(&llhttp_) == HPE_PAUSED) llhttp_resume(&llhttp_);
  const llhttp_errno_t outcome = llhttp_execute(&llhttp_, bytes.data(), bytes.size());
  if (outcome != HPE_OK && outcome != HPE_PAUSED)
    return failure{llhttp_failure("malformed chunks")};
  const char* const end =
      outcome == HPE_PAUSED ? llhttp_get_error_pos(&llhttp_) : bytes.data() + bytes.size();
  count_framing(end);
  if (framing_ > max_framing)
    return failure{refused("too much between two pieces of a chunked body, or after the last")};
  destination_ = {};
  return progress{static_cast<std::size_t>(end - bytes.data()), produced_};
}

}  // namespace headrace::detail
