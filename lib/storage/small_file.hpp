#pragma once

#include <headrace/base/result.hpp>
#include <headrace/coro/task.hpp>
#include <headrace/storage/transfer.hpp>

#include <cstddef>
#include <optional>
#include <string>

namespace headrace {

/// Reads a small regular file of this machine: credentials, a token. Nothing where there is none.
/// Errors name the path and never its contents: `access_denied`; `invalid_request` for what is no
/// regular file or holds more than `limit` bytes; `cancelled`.
[[nodiscard]] task<result<std::optional<std::string>>> read_small_file(
    storage_loop& loop, std::string path, std::size_t limit = std::size_t{256} * 1024);

}  // namespace headrace
