#pragma once

#include "storage/http_object_store.hpp"

#include <headrace/base/result.hpp>
#include <headrace/coro/task.hpp>
#include <headrace/http/http_response_head.hpp>
#include <headrace/storage/transfer.hpp>

#include <chrono>
#include <cstddef>
#include <string>

namespace headrace {

/// What a service that hands out credentials has answered: any status that trying again would not
/// change.
struct service_answer {
  http_response_head head;
  std::string body;
  std::string peer;
};

/// A small request to such a service: metadata servers, token endpoints.
struct service_request {
  addressed_request asked;
  std::string about;  ///< For messages: "the instance metadata service", without secrets.
  std::chrono::nanoseconds connect_limit = std::chrono::seconds(5);
  std::chrono::nanoseconds answer_limit = std::chrono::seconds(10);  ///< Without a byte.
  unsigned retries = 3;
  std::size_t limit = 256 * 1024;  ///< Bytes of the answer's body.
};

/// Asks, with the pauses and retries that ranges have; redirects are not followed. Counted in
/// nobody's statistics. Errors say what was asked: `connect_error`, `timeout`, `unavailable`,
/// `throttled`, `tls_error`, `protocol_error`, `cancelled`.
[[nodiscard]] task<result<service_answer>> ask_service(storage_loop& loop, service_request wanted);

}  // namespace headrace
