#include "storage/http_range_source.hpp"

#include "storage/body_checksum.hpp"
#include "storage/content_range.hpp"
#include "storage/redirect.hpp"

#include <headrace/base/sizes.hpp>

#include <algorithm>
#include <array>
#include <cstring>
#include <unordered_set>
#include <utility>
#include <vector>

namespace headrace {
namespace {

/// Of which origins behind redirects it is remembered how they name the object's version.
constexpr std::size_t remembered_origins = 8;

/// How often a range tries what another one has found, without a byte, before it is refused.
constexpr unsigned overtaken_limit = 2;

failure<attempt_failure> refuse(const http_answer& answer, errc kind, std::string why) {
  return failure{
      attempt_failure{failure_class::fatal, error(kind, std::move(why), answer.context())}};
}

failure<attempt_failure> changed(const http_answer& answer, const std::string& difference) {
  return refuse(answer, errc::object_changed,
                "the object changed while it was read (" + difference + "): load it again");
}

failure<attempt_failure> body_failed(const error& reason) {
  return failure{attempt_failure{classify_body(reason.kind()), reason}};
}

std::optional<content_range> content_range_of(const http_answer& answer) {
  const auto field = answer.head.field("Content-Range");
  return field ? parse_content_range(*field) : std::nullopt;
}

/// Receives into places piece by piece, and shows a checksum what has come before any place is used
/// again: what nobody wants goes to one and the same.
class buffer_window {
 public:
  /// `places` outlives it.
  explicit buffer_window(buffer_sequence places) noexcept : places_(places) {}

  /// The next of the places, no two of them the same. Valid until the next call.
  [[nodiscard]] buffer_sequence next() {
    window_.clear();
    seen_.clear();
    for (std::size_t at = at_; at < places_.size(); ++at) {
      iovec place = places_[at];
      if (!seen_.insert(place.iov_base).second) break;
      if (at == at_) {
        place.iov_base = static_cast<std::byte*>(place.iov_base) + used_;
        place.iov_len -= used_;
      }
      window_.push_back(place);
    }
    return window_;
  }

  /// `bytes` have come into what `next` gave.
  void consume(std::size_t bytes, body_checksum& checksum) {
    for (const iovec& place : window_) {
      const std::size_t part = std::min(place.iov_len, bytes);
      checksum.update({static_cast<const std::byte*>(place.iov_base), part});
      bytes -= part;
      used_ += part;
      if (part < place.iov_len) return;
      ++at_;
      used_ = 0;
    }
  }

 private:
  const buffer_sequence places_;
  std::size_t at_ = 0;    ///< The place that the next byte goes to,
  std::size_t used_ = 0;  ///< and how much of it is taken.
  std::vector<iovec> window_;
  std::unordered_set<const void*> seen_;
};

}  // namespace

/// One range of one object, and how far it is.
class http_range_source::range_exchange final : public http_exchange {
 public:
  /// `opening`: the size is not known, so `range` may reach beyond the end.
  range_exchange(http_range_source& source, storage_loop& loop, const transfer& terms,
                 byte_range range, range_sink& sink, bool opening)
      : source_(source),
        loop_(loop),
        terms_(terms),
        sink_(sink),
        opening_(opening),
        position_(range.begin),
        end_(range.end()),
        retries_({.retries = terms.limits.retries, .shortest_pause = terms.limits.shortest_pause},
                 loop.random, nullptr, terms.limits.deadline) {}

  [[nodiscard]] retry_state& retries() noexcept { return retries_; }
  [[nodiscard]] bool more() const noexcept override { return position_ < end_; }

  task<attempt_result> attempt(stall_watch& watch, bool fresh) override {
    const auto elsewhere = source_.redirection();
    auto prepared = co_await prepare(elsewhere);
    if (!prepared) co_return failure{attempt_failure{failure_class::fatal, prepared.error()}};
    const http_origin origin = prepared->route.origin;
    const std::string target = prepared->request.target;
    auto answer = co_await ask(loop_, terms_, retries_, watch, std::move(*prepared), fresh);
    if (!answer) co_return failure{answer.error()};
    auto outcome = co_await receive(*answer, origin, target, elsewhere);
    // A lease whose body was not consumed closes its connection: what is left of it belongs to
    // nobody.
    watch.release();
    if (!outcome && watch.fired()) answer->lease.discard_and_avoid();
    co_return outcome;
  }

 private:
  task<result<addressed_request>> prepare(std::optional<redirected> elsewhere) {
    object_request wanted{
        .name = source_.name_,
        .range = "bytes=" + std::to_string(position_) + "-" + std::to_string(end_ - 1),
        .pin = source_.pin()};
    if (!elsewhere) {
      auto made = co_await source_.store_->get(loop_, std::move(wanted));
      co_return made;
    }
    // To another origin nothing of the store's goes along: no credentials, no fields of the user's.
    addressed_request made{.route = {elsewhere->origin, source_.store_->network()}, .request = {}};
    made.request.target = elsewhere->target;
    made.request.host = elsewhere->origin.host_field();
    made.request.fields = source_.store_->fields_for(elsewhere->origin);
    for (auto& field : range_fields(wanted)) made.request.fields.push_back(std::move(field));
    co_return made;
  }

  task<attempt_result> receive(http_answer& answer, const http_origin& origin,
                               const std::string& target,
                               const std::optional<redirected>& elsewhere) {
    const int status = answer.head.status();
    if (status == 206) {
      auto taken = co_await take_part(answer, origin);
      co_return taken;
    }
    if (status == 200) {
      auto taken = co_await take_from_whole(answer, origin);
      co_return taken;
    }
    if (status == 416 && opening_ && !source_.pinned()) {
      auto found = find_empty(answer, origin);
      co_await drain(answer);
      co_return found;
    }
    if (status >= 300 && status < 400 && !source_.store_->owns_redirect(answer.head)) {
      auto followed = follow(answer, origin, target);
      co_await drain(answer);
      co_return followed;
    }
    // A signed address runs out; whoever handed it out makes a new one, once. Where another range
    // has got one meanwhile, that one is tried first.
    if ((status == 401 || status == 403 || status == 410) && elsewhere) {
      const bool first = source_.forget(*elsewhere) ? !std::exchange(renewed_, true)
                                                    : ++overtaken_ <= overtaken_limit;
      if (first) {
        co_await drain(answer);
        co_return again(answer);
      }
    }
    auto refused = co_await refusal_of(*source_.store_, answer, source_.pinned());
    co_return failure{std::move(refused)};
  }

  /// 206: the range that was asked for, or the beginning of it.
  task<attempt_result> take_part(http_answer& answer, const http_origin& origin) {
    const auto told = content_range_of(answer);
    if (!told || !told->range || told->range->begin != position_ || told->range->end() > end_) {
      co_return refuse(answer, errc::protocol_error,
                       "the answer is not the range that was asked for");
    }
    if (!told->total)
      co_return refuse(answer, errc::protocol_error,
                       "the server does not say how long the object is");
    if (answer.head.content_length() && *answer.head.content_length() != told->range->size) {
      co_return refuse(answer, errc::protocol_error,
                       "the length of the answer is not that of its range");
    }
    auto same = source_.check_version(answer, *told->total, origin);
    if (!same) co_return same;
    if (opening_) end_ = std::min(end_, *told->total);
    const bool whole = told->range->size == *told->total;
    auto taken = co_await take_checked(answer, told->range->end(), whole);
    if (taken && answer.head.chunked()) co_await see_the_end(*answer.lease);
    co_return taken;
  }

  /// 200: the server does no ranges. Only where the length is known can the right bytes be told
  /// from the others.
  task<attempt_result> take_from_whole(http_answer& answer, const http_origin& origin) {
    const auto total = answer.head.content_length();
    if (!total) {
      co_return refuse(answer, errc::protocol_error,
                       "the server ignores ranges and does not say how long the object is");
    }
    auto same = source_.check_version(answer, *total, origin);
    if (!same) co_return same;
    if (opening_) end_ = std::min(end_, *total);
    if (position_ == 0 && end_ == *total) {
      auto all = co_await take_checked(answer, end_, true);
      co_return all;
    }
    auto skipped = co_await skip(*answer.lease, position_);
    if (!skipped) co_return skipped;
    auto taken = co_await take(*answer.lease, end_);
    co_return taken;
  }

  /// 416 at the start: the object is empty, if its size says so.
  attempt_result find_empty(const http_answer& answer, const http_origin& origin) {
    const auto told = content_range_of(answer);
    if (told && told->total && *told->total != 0) {
      return refuse(answer, errc::protocol_error,
                    "the server refuses the first bytes of an object that has some");
    }
    auto same = source_.check_version(answer, 0, origin);
    if (same) end_ = 0;
    return same;
  }

  attempt_result follow(const http_answer& answer, const http_origin& origin,
                        const std::string& target) {
    const auto location = answer.head.field("Location");
    if (!location)
      return refuse(answer, errc::protocol_error, "a redirect that does not say where to");
    auto resolved = resolve_redirect(origin, target, *location);
    if (!resolved)
      return failure{
          attempt_failure{failure_class::fatal, resolved.error().with(answer.context())}};
    if (const auto told = source_.store_->version_of_redirect(answer.head)) {
      auto same = source_.check_redirect(answer, *told);
      if (!same) return same;
    }
    source_.redirect(redirected{std::move(resolved->origin), std::move(resolved->target)});
    return again(answer);
  }

  static attempt_result again(const http_answer& answer) {
    return failure{attempt_failure{failure_class::fatal,
                                   error(errc::protocol_error, "redirected", answer.context()),
                                   {},
                                   true}};
  }

  /// Receives what is missing up to `end` into the sink.
  task<attempt_result> take(http_connection& from, std::uint64_t end) {
    while (position_ < end) {
      const buffer_sequence buffers = sink_.prepare(end - position_);
      auto received = co_await from.receive_body(buffers);
      if (!received) co_return body_failed(received.error());
      if (*received == 0)
        co_return body_failed(
            error(errc::truncated, "the body ended early", {.peer = from.peer()}));
      commit(*received);
      terms_.statistics->bytes.fetch_add(*received, std::memory_order_relaxed);
    }
    co_return attempt_result();
  }

  /// The same for a body that is exactly what is missing up to `end`, with the checksum that the
  /// answer carries for it, if any. Then nothing of it is committed before all of it is right: what
  /// a tensor has got cannot be taken back. A body that is cut is as good as one without a
  /// checksum.
  task<attempt_result> take_checked(http_answer& answer, std::uint64_t end, bool whole) {
    http_connection& from = *answer.lease;
    auto checksum = body_checksum::of(answer.head, whole);
    const std::uint64_t missing = end - position_;
    if (!checksum) {
      auto taken = co_await take(from, end);
      co_return taken;
    }
    // More places than can be described at once are small ones: then what comes is copied to them.
    std::vector<std::byte> held;
    iovec held_place{};
    buffer_sequence places = sink_.prepare(missing);
    if (total_size(places) < missing) {
      held.resize(static_cast<std::size_t>(missing));
      held_place = as_buffer(held);
      places = {&held_place, 1};
    }
    buffer_window window(places);
    std::size_t filled = 0;
    while (filled < missing) {
      auto received = co_await from.receive_body(window.next());
      if (!received || *received == 0) {
        deliver(held, filled);
        if (!received) co_return body_failed(received.error());
        co_return body_failed(
            error(errc::truncated, "the body ended early", {.peer = from.peer()}));
      }
      window.consume(*received, *checksum);
      filled += *received;
      terms_.statistics->bytes.fetch_add(*received, std::memory_order_relaxed);
    }
    if (!checksum->matches()) {
      co_return failure{attempt_failure{
          failure_class::checksum_mismatch,
          error(errc::protocol_error,
                "the bytes are not those that " + checksum->name() +
                    " of the answer means: they were damaged on their way, or in the store",
                answer.context())}};
    }
    deliver(held, filled);
    co_return attempt_result();
  }

  /// The next `filled` bytes are where they belong, or are to be copied there from `held`.
  void deliver(std::span<const std::byte> held, std::size_t filled) {
    if (held.empty()) {
      commit(filled);
      return;
    }
    held = held.first(filled);
    while (!held.empty()) {
      std::size_t copied = 0;
      for (const iovec& place : sink_.prepare(held.size())) {
        const std::size_t part = std::min(place.iov_len, held.size() - copied);
        std::memcpy(place.iov_base, held.data() + copied, part);
        copied += part;
      }
      commit(copied);
      held = held.subspan(copied);
    }
  }

  void commit(std::size_t bytes) {
    if (bytes == 0) return;
    sink_.commit(bytes);
    position_ += bytes;
    renewed_ = false;
    overtaken_ = 0;
    retries_.received(bytes);
  }

  /// The end of a chunked body comes after its last byte. Only for the connection's sake: what was
  /// asked for is there.
  static task<void> see_the_end(http_connection& from) {
    std::array<std::byte, 1> more{};
    const iovec buffer = as_buffer(more);
    auto received = co_await from.receive_body({&buffer, 1});
    static_cast<void>(received);
  }

  static task<attempt_result> skip(http_connection& from, std::uint64_t size) {
    std::vector<std::byte> unwanted(static_cast<std::size_t>(std::min<std::uint64_t>(size, 1_MiB)));
    while (size > 0) {
      const auto part = std::min<std::uint64_t>(size, unwanted.size());
      const iovec buffer = as_buffer(std::span(unwanted).first(static_cast<std::size_t>(part)));
      auto received = co_await from.receive_body({&buffer, 1});
      if (!received) co_return body_failed(received.error());
      if (*received == 0)
        co_return body_failed(
            error(errc::truncated, "the body ended early", {.peer = from.peer()}));
      size -= *received;
    }
    co_return attempt_result();
  }

  http_range_source& source_;
  storage_loop& loop_;
  const transfer& terms_;
  range_sink& sink_;
  const bool opening_;
  std::uint64_t position_;  // the first byte that has not arrived
  std::uint64_t end_;
  bool renewed_ = false;    // a redirect has run out and was asked for again
  unsigned overtaken_ = 0;  // a redirect had run out, and another range had asked again
  retry_state retries_;
};

http_range_source::http_range_source(std::shared_ptr<http_object_store> store, std::string name)
    : store_(std::move(store)), name_(std::move(name)), uri_(store_->uri_of(name_)) {}

task<result<std::size_t>> http_range_source::open(storage_loop& loop, const transfer& terms,
                                                  std::span<std::byte> into) {
  buffer_sink sink(into);
  const byte_range range{0, into.size()};
  range_exchange wanted(*this, loop, terms, range, sink, true);
  auto done = co_await attempt_until_done(loop, terms, wanted.retries(), wanted,
                                          {.uri = uri_, .range = range});
  if (!done) co_return failure{done.error()};
  co_return sink.filled();
}

task<result<void>> http_range_source::read(storage_loop& loop, const transfer& terms,
                                           byte_range range, range_sink& sink) {
  range_exchange wanted(*this, loop, terms, range, sink, false);
  auto done = co_await attempt_until_done(loop, terms, wanted.retries(), wanted,
                                          {.uri = uri_, .range = range});
  co_return done;
}

std::uint64_t http_range_source::size() const noexcept {
  const std::lock_guard lock(mutex_);
  return pin_ ? pin_->size : 0;
}

std::optional<object_version> http_range_source::pin() const {
  const std::lock_guard lock(mutex_);
  return pinned_by_redirect_ ? std::nullopt : pin_;
}

bool http_range_source::pinned() const {
  const std::lock_guard lock(mutex_);
  return compared_;
}

attempt_result http_range_source::check_version(const http_answer& answer, std::uint64_t total,
                                                const http_origin& origin) {
  object_version found = store_->version_of(answer.head, total);
  const std::lock_guard lock(mutex_);
  if (!pin_) {
    compared_ = true;
    pin_ = std::move(found);
    return {};
  }
  std::string difference;
  if (pinned_by_redirect_) {
    if (total != pin_->size) {
      difference = object_version{.size = pin_->size}.difference(found);
    } else {
      // Origins come and go with signed addresses; nobody has many at a time.
      if (served_.size() >= remembered_origins && !served_.contains(origin)) served_.clear();
      difference = served_.try_emplace(origin, found).first->second.difference(found);
    }
  } else {
    difference = pin_->difference(found);
  }
  if (!difference.empty()) return changed(answer, difference);
  compared_ = true;
  return {};
}

attempt_result http_range_source::check_redirect(const http_answer& answer,
                                                 const object_version& told) {
  const std::lock_guard lock(mutex_);
  if (!pin_) pin_ = told;
  const std::string difference = pin_->difference(told);
  if (!difference.empty()) return changed(answer, difference);
  pinned_by_redirect_ = true;
  return {};
}

std::optional<http_range_source::redirected> http_range_source::redirection() const {
  const std::lock_guard lock(mutex_);
  return redirected_;
}

void http_range_source::redirect(redirected to) {
  const std::lock_guard lock(mutex_);
  redirected_ = std::move(to);
}

bool http_range_source::forget(const redirected& refused) {
  const std::lock_guard lock(mutex_);
  if (!redirected_ || *redirected_ != refused) return false;
  redirected_.reset();
  return true;
}

http_fields range_fields(const object_request& wanted) {
  http_fields fields;
  fields.emplace_back("Range", wanted.range);
  if (wanted.pin && wanted.pin->strong_tag() != nullptr)
    fields.emplace_back("If-Match", wanted.pin->strong_tag()->text());
  return fields;
}

std::shared_ptr<range_source> http_object_store::source(std::string_view name) {
  return std::make_shared<http_range_source>(shared_from_this(), std::string(name));
}

}  // namespace headrace
