#include "storage/listing_request.hpp"

#include "storage/http_attempts.hpp"

#include <algorithm>
#include <utility>

namespace headrace {
namespace {

/// Pages of a listing before it is taken for one without an end.
constexpr std::size_t page_limit = 10'000;

class text_exchange final : public http_exchange {
 public:
  text_exchange(storage_loop& loop, const transfer& terms, http_object_store& store,
                text_request wanted)
      : loop_(loop),
        terms_(terms),
        store_(store),
        wanted_(std::move(wanted)),
        retries_({.retries = terms.limits.retries, .shortest_pause = terms.limits.shortest_pause},
                 loop.random, nullptr, terms.limits.deadline) {}

  [[nodiscard]] retry_state& retries() noexcept { return retries_; }
  [[nodiscard]] text_answer& answer() noexcept { return answer_; }
  [[nodiscard]] bool more() const noexcept override { return false; }

  task<attempt_result> attempt(stall_watch& watch, bool fresh) override {
    auto prepared = co_await wanted_.make(store_, loop_, wanted_.argument);
    if (!prepared) co_return failure{attempt_failure{failure_class::fatal, prepared.error()}};
    auto answer = co_await ask(loop_, terms_, retries_, watch, std::move(*prepared), fresh);
    if (!answer) co_return failure{answer.error()};
    auto outcome = co_await receive(*answer);
    watch.release();
    if (!outcome && watch.fired()) answer->lease.discard_and_avoid();
    co_return outcome;
  }

 private:
  task<attempt_result> receive(http_answer& answer) {
    if (answer.head.status() != 200) {
      auto refused = co_await refusal_of(store_, answer, false);
      co_return failure{std::move(refused)};
    }
    auto body = co_await answer.lease->read_text(wanted_.limit);
    if (!body) co_return failure{attempt_failure{classify_body(body.error().kind()), body.error()}};
    answer_ = {std::move(answer.head), std::move(*body)};
    co_return attempt_result();
  }

  storage_loop& loop_;
  const transfer& terms_;
  http_object_store& store_;
  const text_request wanted_;
  retry_state retries_;
  text_answer answer_;
};

}  // namespace

task<result<std::string>> fetch_text(storage_loop& loop, const transfer& terms,
                                     http_object_store& store, std::string about,
                                     text_request wanted) {
  auto answer = co_await fetch_answer(loop, terms, store, std::move(about), std::move(wanted));
  if (!answer) co_return failure{answer.error()};
  co_return std::move(answer->text);
}

task<result<text_answer>> fetch_answer(storage_loop& loop, const transfer& terms,
                                       http_object_store& store, std::string about,
                                       text_request wanted) {
  text_exchange exchange(loop, terms, store, std::move(wanted));
  auto done = co_await attempt_until_done(loop, terms, exchange.retries(), exchange,
                                          {.uri = std::move(about)});
  if (!done) co_return failure{done.error()};
  co_return std::move(exchange.answer());
}

task<result<std::vector<object_entry>>> list_pages(storage_loop& loop, const transfer& terms,
                                                   http_object_store& store, object_place place,
                                                   std::string about, paged_listing how) {
  std::vector<object_entry> found;
  std::string next;
  for (std::size_t page = 0; page < page_limit; ++page) {
    auto body = co_await fetch_text(loop, terms, store, about,
                                    {.make = how.make, .argument = next, .limit = how.limit});
    if (!body) co_return failure{body.error()};
    auto read = how.parse(*body);
    if (!read) co_return failure{read.error().with({.uri = about})};
    for (const auto& object : read->objects) {
      auto name = place.name_of(object.name);
      // An empty object with a slash at its end is how consoles make a folder.
      if (name && !name->ends_with('/')) found.push_back({std::move(*name), object.size});
    }
    if (read->next.empty()) {
      std::ranges::sort(found, {}, &object_entry::name);
      co_return found;
    }
    if (read->next == next) break;
    next = std::move(read->next);
  }
  co_return failure{error(errc::protocol_error, "a listing that does not end", {.uri = about})};
}

}  // namespace headrace
