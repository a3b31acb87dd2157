#include "device/pinned_memory.hpp"

#include "device/cuda_context.hpp"

namespace headrace::detail {

result<void> pin(const cuda_device& target, std::span<std::byte> pages) {
  constexpr const char* doing = "pin memory for";
  const cuda_context& context = target.context();
  const context_scope here(context);
  if (here.state() != CUDA_SUCCESS) return failure{context.failure(here.state(), doing)};
  const CUresult code =
      context.driver().cuMemHostRegister(pages.data(), pages.size(), CU_MEMHOSTREGISTER_PORTABLE);
  if (code == CUDA_SUCCESS) return {};
  const error failed = context.failure(code, doing);
  // What the system says where it does not lock any more.
  if (code == CUDA_ERROR_OPERATING_SYSTEM)
    return failure{error(errc::out_of_memory, failed.reason())};
  return failure{failed};
}

void unpin(const cuda_device& target, std::byte* pages) noexcept {
  const context_scope here(target.context());
  // An error is that of a context that is dead: it holds no pages any more.
  if (here.state() == CUDA_SUCCESS)
    static_cast<void>(target.context().driver().cuMemHostUnregister(pages));
}

bool left_behind_by_fork(const cuda_device&) noexcept { return cuda_driver::forked(); }

}  // namespace headrace::detail
