#include <headrace/http/http_connection.hpp>

#include "http/http_proxy.hpp"
#include "http/response_parser.hpp"

#include <headrace/base/assert.hpp>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <utility>

namespace headrace {
namespace {

// Holds any usual head. What of the body comes along in it is copied, so more would not be better.
constexpr std::size_t buffer_size = 16 * 1024;

constexpr std::size_t first_text_step = 8 * 1024;

}  // namespace

http_connection::http_connection(std::unique_ptr<byte_stream> stream)
    : stream_(std::move(stream)),
      parser_(std::make_unique<detail::response_parser>()),
      buffer_(std::make_unique_for_overwrite<std::byte[]>(buffer_size)) {
  HEADRACE_ASSERT(stream_ != nullptr);
}

http_connection::~http_connection() = default;

error_context http_connection::context() const {
  return {.peer = stream_->peer(), .status = status_};
}

failure<error> http_connection::fail(const error& reason) {
  state_ = state::failed;
  return failure{reason.with(context())};
}

failure<error> http_connection::misused(const char* what) const {
  if (state_ == state::failed) {
    return failure{error(errc::connect_error,
                         "the connection has failed before and cannot be used again", context())};
  }
  return failure{error(errc::internal, what, context())};
}

failure<error> http_connection::fail_in_head(std::error_code code) {
  if (kind_of(code) == errc::cancelled)
    return fail(error(errc::cancelled, "stopped during a request"));
  if (!answer_started_) return fail(system_failure(code, "the connection broke before the answer"));
  return fail(system_failure(code, "the connection broke in the header of the answer"));
}

failure<error> http_connection::fail_in_body(std::error_code code) {
  if (kind_of(code) == errc::cancelled)
    return fail(error(errc::cancelled, "stopped while the body was received"));
  std::string what = code ? "connection broken after " : "connection closed after ";
  what += std::to_string(body_received_);
  if (framing_ == framing::length) {
    what += " of " + std::to_string(body_size_) + " bytes";
  } else {
    what += " bytes of a body without a length, before its end";
  }
  if (!code) return fail(error(errc::truncated, std::move(what)));
  if (kind_of(code) == errc::connect_error)
    return fail(error(errc::truncated, what + ": " + code.message()));
  return fail(system_failure(code, what));
}

std::span<const char> http_connection::buffered() const noexcept {
  return {reinterpret_cast<const char*>(buffer_.get()) + begin_, end_ - begin_};
}

void http_connection::forward_through(std::shared_ptr<const detail::http_proxy> proxy,
                                      const http_origin& origin) {
  HEADRACE_ASSERT(state_ == state::ready);
  proxy_ = std::move(proxy);
  target_prefix_ = origin.scheme + "://" + origin.host_field();
}

task<result<http_response_head>> http_connection::send(http_request request) {
  if (state_ != state::ready)
    co_return misused("a request was sent on a connection that is not ready for one");
  if (proxy_ != nullptr) {
    request.target.insert(0, target_prefix_);
    if (!proxy_->authorization.empty())
      request.fields.emplace_back("Proxy-Authorization", proxy_->authorization);
  }
  wire_.clear();
  auto serialized = request.serialize(wire_);
  if (!serialized) co_return failure{std::move(serialized).error()};

  answer_started_ = false;
  status_ = 0;
  body_received_ = 0;
  begin_ = end_ = 0;
  if (stream_->stale()) {
    co_return fail(
        error(errc::connect_error,
              "the peer closed the connection, or spoke unasked, before the request was sent"));
  }
  state_ = state::exchanging;
  parser_->begin(request.method == "HEAD");
  auto sent = co_await stream_->send(std::as_bytes(std::span(wire_)));
  if (!sent) co_return fail_in_head(sent.error());

  const std::array<iovec, 1> whole_buffer{iovec{buffer_.get(), buffer_size}};
  while (!parser_->head_complete()) {
    auto received = co_await stream_->receive(whole_buffer);
    if (!received) co_return fail_in_head(received.error());
    HEADRACE_ASSERT(*received <= buffer_size);
    if (*received == 0) {
      co_return fail(error(errc::connect_error,
                           answer_started_
                               ? "the peer closed the connection in the header of its answer"
                               : "the peer closed the connection without an answer"));
    }
    answer_started_ = true;
    bytes_received_ += *received;
    begin_ = 0;
    end_ = *received;
    auto parsed = parser_->parse_head(buffered());
    if (!parsed) co_return fail(parsed.error());
    begin_ = *parsed;
  }
  auto head = parser_->take_head();
  keep_alive_ = request.keep_alive && head.keep_alive();
  begin_body(head);
  if (request.method == "CONNECT" && status_ >= 200 && status_ <= 299) state_ = state::tunnel;
  if (proxy_ != nullptr && status_ == 407) co_return fail(detail::proxy_denial(*proxy_, head));
  co_return std::move(head);
}

result<std::unique_ptr<byte_stream>> http_connection::release() {
  if (state_ != state::tunnel) return misused("a stream was asked for that is no tunnel");
  if (begin_ != end_) {
    return fail(error(errc::protocol_error,
                      "it sent bytes behind its answer, before anything was said to the origin"));
  }
  state_ = state::failed;
  return std::move(stream_);
}

void http_connection::begin_body(const http_response_head& head) {
  status_ = head.status();
  encoded_ = head.encoded();
  body_size_ = 0;
  const auto size = head.body_size();
  if (!size) {
    framing_ = head.chunked() ? framing::chunked : framing::close;
  } else if (*size == 0) {
    framing_ = framing::none;
  } else {
    framing_ = framing::length;
    body_size_ = *size;
  }
  state_ = state::body;
  if (framing_ == framing::none) end_body();
}

void http_connection::end_body() noexcept {
  ++exchanges_;
  // What came after the body answers nothing that was asked.
  const bool clean = begin_ == end_;
  state_ = keep_alive_ && clean && framing_ != framing::close ? state::ready : state::finished;
}

std::size_t http_connection::take_buffered(buffer_sequence destination, std::size_t most) noexcept {
  std::size_t taken = 0;
  for (const iovec& into : destination) {
    const std::size_t size = std::min({into.iov_len, end_ - begin_, most - taken});
    if (size == 0) break;
    std::memcpy(into.iov_base, buffer_.get() + begin_, size);
    begin_ += size;
    taken += size;
  }
  return taken;
}

buffer_sequence http_connection::cut(buffer_sequence destination, std::size_t most) {
  vectors_.clear();
  for (const iovec& into : destination) {
    if (most == 0) break;
    vectors_.push_back({into.iov_base, std::min(into.iov_len, most)});
    most -= vectors_.back().iov_len;
  }
  return vectors_;
}

task<result<std::size_t>> http_connection::receive_body(buffer_sequence destination) {
  if (body_complete()) co_return std::size_t{0};
  if (state_ != state::body) co_return misused("a body was asked for before there was an answer");
  const std::size_t room = total_size(destination);
  if (room == 0) co_return std::size_t{0};
  if (framing_ == framing::chunked) {
    auto received = co_await receive_chunked(destination);
    co_return std::move(received);
  }

  std::uint64_t left = std::numeric_limits<std::uint64_t>::max();
  if (framing_ == framing::length) left = body_size_ - body_received_;
  const auto most = static_cast<std::size_t>(std::min<std::uint64_t>(room, left));
  std::size_t taken = 0;
  if (begin_ != end_) {
    taken = take_buffered(destination, most);
  } else {
    const auto into = most < room ? cut(destination, most) : destination;
    auto received = co_await stream_->receive(into);
    if (!received) co_return fail_in_body(received.error());
    HEADRACE_ASSERT(*received <= most);
    taken = *received;
    bytes_received_ += taken;
    if (taken == 0) {
      if (framing_ == framing::length) co_return fail_in_body({});
      end_body();
      co_return std::size_t{0};
    }
  }
  body_received_ += taken;
  if (framing_ == framing::length && body_received_ == body_size_) end_body();
  co_return taken;
}

task<result<std::size_t>> http_connection::receive_chunked(buffer_sequence destination) {
  const std::size_t room = total_size(destination);
  const std::array<iovec, 1> whole_buffer{iovec{buffer_.get(), buffer_size}};
  while (true) {
    if (begin_ == end_) {
      auto received = co_await stream_->receive(whole_buffer);
      if (!received) co_return fail_in_body(received.error());
      HEADRACE_ASSERT(*received <= buffer_size);
      if (*received == 0) co_return fail_in_body({});
      bytes_received_ += *received;
      begin_ = 0;
      end_ = *received;
    }
    // No more bytes go in than fit if every one of them is the body's.
    const auto piece = buffered().first(std::min(end_ - begin_, room));
    auto parsed = parser_->parse_chunks(piece, destination);
    if (!parsed) co_return fail(parsed.error());
    begin_ += parsed->consumed;
    body_received_ += parsed->produced;
    if (parser_->body_complete()) end_body();
    if (parsed->produced > 0 || parser_->body_complete()) co_return parsed->produced;
  }
}

task<result<std::string>> http_connection::read_text(std::size_t limit) {
  if (state_ != state::body && !body_complete())
    co_return misused("a body was asked for before there was an answer");
  const auto too_large = [this, limit] {
    return fail(error(errc::protocol_error, "the body is larger than the " + std::to_string(limit) +
                                                " bytes that were expected at most"));
  };
  std::string text;
  std::size_t size = 0;
  std::size_t step = first_text_step;
  while (state_ == state::body) {
    std::size_t room = std::min(step, limit - size);
    if (framing_ == framing::length) {
      const std::uint64_t left = body_size_ - body_received_;
      if (left > limit - size) co_return too_large();
      room = static_cast<std::size_t>(
          std::min<std::uint64_t>(left, step));  // a claimed length alone costs nothing
    } else if (room < step) {
      ++room;  // one byte beyond the limit tells that there is more
    }
    text.resize(size + room);
    const std::array<iovec, 1> into{iovec{text.data() + size, room}};
    auto received = co_await receive_body(into);
    if (!received) co_return failure{std::move(received).error()};
    size += *received;
    if (size > limit) co_return too_large();
    if (*received == room) step *= 2;
  }
  text.resize(encoded_ ? 0 : size);
  co_return std::move(text);
}

}  // namespace headrace
