#pragma once

#include <headrace/base/error.hpp>
#include <headrace/base/result.hpp>

#include <cuda.h>

#include <string>

#if CUDA_VERSION < 11020
#error "headrace needs the headers of CUDA 11.2 or newer"
#endif

// Every driver since CUDA 11.2 has these under the names that <cuda.h>'s own macros give them.
#define HEADRACE_CUDA_FUNCTIONS(USE)     \
  USE(cuGetErrorName)                    \
  USE(cuGetErrorString)                  \
  USE(cuInit)                            \
  USE(cuDriverGetVersion)                \
  USE(cuDeviceGetCount)                  \
  USE(cuDeviceGet)                       \
  USE(cuDeviceGetName)                   \
  USE(cuDeviceGetAttribute)              \
  USE(cuDevicePrimaryCtxRetain)          \
  USE(cuDevicePrimaryCtxRelease)         \
  USE(cuCtxPushCurrent)                  \
  USE(cuCtxPopCurrent)                   \
  USE(cuCtxGetCurrent)                   \
  USE(cuThreadExchangeStreamCaptureMode) \
  USE(cuStreamCreate)                    \
  USE(cuStreamDestroy)                   \
  USE(cuStreamGetCtx)                    \
  USE(cuStreamIsCapturing)               \
  USE(cuStreamQuery)                     \
  USE(cuStreamSynchronize)               \
  USE(cuStreamWaitEvent)                 \
  USE(cuEventCreate)                     \
  USE(cuEventDestroy)                    \
  USE(cuEventQuery)                      \
  USE(cuEventRecord)                     \
  USE(cuLaunchHostFunc)                  \
  USE(cuMemAlloc)                        \
  USE(cuMemFree)                         \
  USE(cuMemGetInfo)                      \
  USE(cuMemHostRegister)                 \
  USE(cuMemHostUnregister)               \
  USE(cuMemcpyHtoDAsync)                 \
  USE(cuMemcpyDtoHAsync)

// Null where the driver has no memory pools.
#define HEADRACE_CUDA_POOL_FUNCTIONS(USE) \
  USE(cuMemPoolCreate)                    \
  USE(cuMemPoolDestroy)                   \
  USE(cuMemPoolSetAttribute)              \
  USE(cuMemAllocFromPoolAsync)            \
  USE(cuMemFreeAsync)

namespace headrace::detail {

/// The driver API, loaded at run time: nothing of CUDA is linked. Threads: any.
///
/// A library in a process that forks must not be asked anything in the child: see `forked`.
class cuda_driver {
 public:
  /// The driver's library (`libcuda.so.1`, where the loader looks), loaded at the first call and
  /// never unloaded. `unsupported` where there is none.
  [[nodiscard]] static result<const cuda_driver*> load();

  /// Initialises the driver. Blocks, for seconds the first time.
  [[nodiscard]] result<void> initialise() const;

  /// Whether this process is a child of the one that initialised the driver: nothing of it works
  /// here, and nothing must be given back.
  [[nodiscard]] static bool forked() noexcept;

  /// What `code` means. `doing` begins the message: "cannot copy to cuda:0".
  [[nodiscard]] error failure(CUresult code, const std::string& doing) const;

  // CUDA's own names.
  // NOLINTBEGIN(readability-identifier-naming,bugprone-macro-parentheses)
#define HEADRACE_DECLARE(name) decltype(&::name) name = nullptr;
  HEADRACE_CUDA_FUNCTIONS(HEADRACE_DECLARE)
  HEADRACE_CUDA_POOL_FUNCTIONS(HEADRACE_DECLARE)
#undef HEADRACE_DECLARE
  // NOLINTEND(readability-identifier-naming,bugprone-macro-parentheses)

  [[nodiscard]] bool has_pools() const noexcept { return has_pools_; }

 private:
  cuda_driver() = default;
  [[nodiscard]] result<void> resolve(void* library);

  bool has_pools_ = false;
};

}  // namespace headrace::detail
