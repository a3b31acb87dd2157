#include <headrace/base/assert.hpp>

#include <cstdio>
#include <exception>

namespace headrace::detail {

void invariant_broken(const char* condition, const char* file, int line) noexcept {
  std::fprintf(stderr, "headrace: broken invariant: %s (%s:%d)\n", condition, file, line);
  std::terminate();
}

}  // namespace headrace::detail
