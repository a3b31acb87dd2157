#pragma once

#include "storage/http_object_store.hpp"

#include <cstddef>
#include <string>

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

}  // namespace headrace
