#pragma once

#include <headrace/base/export.hpp>

namespace headrace::detail {

/// Prints the broken invariant to stderr and terminates. Never returns.
[[noreturn]] HEADRACE_API void invariant_broken(const char* condition, const char* file,
                                                int line) noexcept;

}  // namespace headrace::detail

/// A broken invariant of headrace itself: terminates in every build, because going on could deliver
/// a wrong byte. Not for bad input, which is an error.
#define HEADRACE_ASSERT(condition)    \
  ((condition) ? static_cast<void>(0) \
               : ::headrace::detail::invariant_broken(#condition, __FILE__, __LINE__))
