#pragma once

#include "storage/http_object_store.hpp"
#include "storage/object_place.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace headrace {

/// How to make a request whose answer is text.
struct text_request {
  task<result<addressed_request>> (*make)(http_object_store& store, storage_loop& loop,
                                          std::string argument);
  std::string argument;
  std::size_t limit;  ///< Bytes of the answer.
};

/// An answer of 200, and its text.
struct text_answer {
  http_response_head head;
  std::string text;
};

/// Asks for a listing or another small answer, with the retries that ranges have. `about` is the
/// URI for messages. The store outlives the task.
[[nodiscard]] task<result<std::string>> fetch_text(storage_loop& loop, const transfer& terms,
                                                   http_object_store& store, std::string about,
                                                   text_request wanted);

/// The same, with the head of the answer: for what stands in its fields.
[[nodiscard]] task<result<text_answer>> fetch_answer(storage_loop& loop, const transfer& terms,
                                                     http_object_store& store, std::string about,
                                                     text_request wanted);

/// Whether a listing holds what lies deeper, too.
enum class listing_depth : std::uint8_t { direct, everything };

/// One page of a listing.
struct listing_page {
  std::vector<object_entry> objects;  ///< By their whole keys.
  std::string next;                   ///< What asks for the next page; empty on the last one.
};

/// How a listing in pages is asked for, and read.
struct paged_listing {
  /// The request for the page that `next` of the one before names; for the first one it is empty.
  task<result<addressed_request>> (*make)(http_object_store& store, storage_loop& loop,
                                          std::string next);
  result<listing_page> (*parse)(std::string_view body);
  std::size_t limit;  ///< Bytes of a page.
};

/// All objects that lie at `place`, sorted by name. `about` is the URI for messages.
/// `protocol_error`: a page that is none, a listing that does not end. The store outlives the task.
[[nodiscard]] task<result<std::vector<object_entry>>> list_pages(
    storage_loop& loop, const transfer& terms, http_object_store& store, object_place place,
    std::string about, paged_listing how);

}  // namespace headrace
