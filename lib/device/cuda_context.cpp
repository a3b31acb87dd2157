#include "device/cuda_context.hpp"

#include <array>

namespace headrace::detail {

result<std::shared_ptr<cuda_context>> cuda_context::retain(const cuda_driver& driver,
                                                           std::uint32_t index) {
  std::shared_ptr<cuda_context> made(new cuda_context(driver, index));
  int count = 0;
  CUresult code = driver.cuDeviceGetCount(&count);
  if (code != CUDA_SUCCESS) return headrace::failure{made->failure(code, "count the devices for")};
  if (index >= static_cast<std::uint32_t>(count)) {
    const std::string seen =
        count == 0 ? "no CUDA device"
        : count == 1
            ? "one CUDA device, cuda:0"
            : std::to_string(count) + " CUDA devices, cuda:0 to cuda:" + std::to_string(count - 1);
    return headrace::failure{
        error(errc::invalid_request, "there is no cuda:" + std::to_string(index) +
                                         ": this process sees " + seen +
                                         " (CUDA_VISIBLE_DEVICES chooses which)")};
  }
  code = driver.cuDeviceGet(&made->device_, static_cast<int>(index));
  std::array<char, 256> name{};
  if (code == CUDA_SUCCESS) {
    code = driver.cuDeviceGetName(name.data(), static_cast<int>(name.size() - 1), made->device_);
    made->name_ = name.data();
  }
  if (code == CUDA_SUCCESS) {
    CUcontext handle = nullptr;
    code = driver.cuDevicePrimaryCtxRetain(&handle, made->device_);
    if (code == CUDA_SUCCESS) made->handle_ = handle;
  }
  if (code != CUDA_SUCCESS) return headrace::failure{made->failure(code, "open")};
  return made;
}

cuda_context::~cuda_context() {
  if (handle_ == nullptr || cuda_driver::forked()) return;
  {
    const context_scope here(*this);
    // Errors are those of a context that is dead, or of a driver that is going with the process:
    // there is nothing left to give back then.
    if (here.state() == CUDA_SUCCESS) {
      if (pool_.pool != nullptr) static_cast<void>(driver_.cuMemPoolDestroy(pool_.pool));
      if (pool_.stream != nullptr) static_cast<void>(driver_.cuStreamDestroy(pool_.stream));
    }
  }
  static_cast<void>(driver_.cuDevicePrimaryCtxRelease(device_));
}

error cuda_context::failure(CUresult code, const char* what) const {
  return driver_.failure(code, std::string("cannot ") + what + " cuda:" + std::to_string(index_));
}

result<void> cuda_context::check_order(CUstream stream) const {
  if (stream == nullptr || stream == CU_STREAM_LEGACY) return {};
  if (stream == CU_STREAM_PER_THREAD) {
    return headrace::failure{
        error(errc::invalid_request,
              "the per-thread default stream is another one on each thread: "
              "pass a stream that was created, or none for the default stream")};
  }
  CUstreamCaptureStatus capturing = CU_STREAM_CAPTURE_STATUS_NONE;
  const CUresult code = driver_.cuStreamIsCapturing(stream, &capturing);
  if (code != CUDA_SUCCESS) return headrace::failure{failure(code, "use the stream on")};
  if (capturing != CU_STREAM_CAPTURE_STATUS_NONE) {
    return headrace::failure{error(errc::invalid_request,
                                   "a graph is being captured from the stream: pass another one")};
  }
  return {};
}

result<device_pool> cuda_context::pool(std::size_t idle_limit) {
  constexpr const char* doing = "make a memory pool on";
  const std::lock_guard lock(mutex_);
  const context_scope here(*this);
  if (here.state() != CUDA_SUCCESS) return headrace::failure{failure(here.state(), doing)};
  if (!pool_tried_) {
    const CUresult code = make_pool();
    if (code != CUDA_SUCCESS) return headrace::failure{failure(code, doing)};
    pool_tried_ = true;
  }
  if (pool_.pool != nullptr) {
    cuuint64_t kept = idle_limit;
    const CUresult code =
        driver_.cuMemPoolSetAttribute(pool_.pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &kept);
    if (code != CUDA_SUCCESS) return headrace::failure{failure(code, doing)};
  }
  return pool_;
}

CUresult cuda_context::make_pool() {
  int supported = 0;
  CUresult code =
      driver_.cuDeviceGetAttribute(&supported, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, device_);
  if (code != CUDA_SUCCESS) return code;
  if (supported == 0 || !driver_.has_pools()) return CUDA_SUCCESS;

  device_pool made;
  code = driver_.cuStreamCreate(&made.stream, CU_STREAM_NON_BLOCKING);
  if (code != CUDA_SUCCESS) return code;
  CUmemPoolProps wanted{};
  wanted.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.handleTypes = CU_MEM_HANDLE_TYPE_NONE;
  wanted.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  wanted.location.id = device_;
  code = driver_.cuMemPoolCreate(&made.pool, &wanted);
  if (code != CUDA_SUCCESS) {
    static_cast<void>(driver_.cuStreamDestroy(made.stream));
    // Virtual devices say so only here.
    return code == CUDA_ERROR_NOT_SUPPORTED ? CUDA_SUCCESS : code;
  }
  pool_ = made;
  return CUDA_SUCCESS;
}

context_scope::context_scope(const cuda_context& entered) noexcept : driver_(entered.driver()) {
  if (cuda_driver::forked()) {
    state_ = CUDA_ERROR_NOT_INITIALIZED;
    return;
  }
  exchanged_ = driver_.cuThreadExchangeStreamCaptureMode(&mode_) == CUDA_SUCCESS;
  CUcontext current = nullptr;
  state_ = driver_.cuCtxGetCurrent(&current);
  if (state_ != CUDA_SUCCESS || current == entered.handle()) return;
  state_ = driver_.cuCtxPushCurrent(entered.handle());
  pushed_ = state_ == CUDA_SUCCESS;
  // An error may be that of something earlier, and the context have been pushed all the same.
  if (!pushed_ && driver_.cuCtxGetCurrent(&current) == CUDA_SUCCESS)
    pushed_ = current == entered.handle();
}

context_scope::~context_scope() {
  if (pushed_) {
    CUcontext popped = nullptr;
    static_cast<void>(driver_.cuCtxPopCurrent(&popped));
  }
  if (exchanged_) static_cast<void>(driver_.cuThreadExchangeStreamCaptureMode(&mode_));
}

}  // namespace headrace::detail
