#pragma once

#include <headrace/base/export.hpp>
#include <headrace/coro/task.hpp>
#include <headrace/stream/runtime.hpp>
#include <headrace/stream/tensor.hpp>

#include <cstddef>
#include <span>

namespace headrace {

/// Copies the bytes of `from` into `to`, which has as many, from wherever they are.
///
/// For looking at a tensor now and then; it neither overlaps nor batches. Both must stay as they
/// are until the task has ended. Resumes on the awaiter's executor. Throws `headrace::error`:
/// `invalid_request` where the sizes differ, what the driver says, `cancelled` after the runtime
/// has gone.
///
///     std::vector<std::byte> bytes(t->bytes().size());
///     co_await headrace::copy_to_host(runtime, *t, bytes);
[[nodiscard]] HEADRACE_API task<void> copy_to_host(runtime& runtime, const tensor& from,
                                                   std::span<std::byte> to);

}  // namespace headrace
