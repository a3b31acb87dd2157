#include "device/cuda_driver.hpp"

#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <string_view>
#include <type_traits>
#include <utility>

namespace headrace::detail {
namespace {

constexpr int oldest_driver = 11020;

// The process that initialised the driver; 0: none yet.
std::atomic<pid_t> initialised_in{0};

error forked_failure() {
  return error(
      errc::unsupported,
      "CUDA was initialised in the parent of this process, and does not survive a fork: start processes that use "
      "a device by spawn (multiprocessing.set_start_method(\"spawn\") in Python), or fork before CUDA is first used");
}

// What is behind these never comes back to life: every later call in this process fails as well.
bool kills_the_context(CUresult code) noexcept {
  constexpr int contained = 226;  // CUDA_ERROR_CONTAINED, which older headers lack
  switch (static_cast<int>(code)) {
    case contained:
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_NVLINK_UNCORRECTABLE:
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_LAUNCH_FAILED:
    case CUDA_ERROR_UNKNOWN:
      return true;
    default:
      return false;
  }
}

errc kind_of(CUresult code) noexcept {
  switch (code) {
    case CUDA_ERROR_OUT_OF_MEMORY:
      return errc::out_of_memory;
    case CUDA_ERROR_NO_DEVICE:
    case CUDA_ERROR_INVALID_DEVICE:
    case CUDA_ERROR_INVALID_HANDLE:
    case CUDA_ERROR_INVALID_CONTEXT:
    case CUDA_ERROR_INVALID_VALUE:
      return errc::invalid_request;
    case CUDA_ERROR_STUB_LIBRARY:
    case CUDA_ERROR_NOT_SUPPORTED:
    case CUDA_ERROR_NOT_PERMITTED:
    case CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:
    case CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE:
      return errc::unsupported;
    case CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED:
      return errc::internal;
    default:
      return errc::unavailable;
  }
}

}  // namespace

result<const cuda_driver*> cuda_driver::load() {
  // Without a mutex, which a fork could leave locked for ever in the child. Whoever comes second
  // throws its own table away.
  static std::atomic<const cuda_driver*> loaded{nullptr};
  // Acquire: the table is read through it.
  if (const auto* const known = loaded.load(std::memory_order_acquire)) return known;

  void* const library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const said = ::dlerror();
    const std::string_view reason = said != nullptr ? said : "";
    // Not what is said of a library that the driver's own needs.
    const bool itself = reason.find("libcuda.so.1:") != std::string_view::npos;
    if (itself && reason.find("No such file") != std::string_view::npos) {
      return headrace::failure{error(errc::unsupported, "no CUDA driver (libcuda.so.1 not found)")};
    }
    return headrace::failure{
        error(errc::unsupported, "the CUDA driver cannot be loaded: " + std::string(reason))};
  }
  std::unique_ptr<cuda_driver> made(new cuda_driver);
  auto resolved = made->resolve(library);
  if (!resolved) return headrace::failure{resolved.error()};

  const cuda_driver* first = nullptr;
  if (loaded.compare_exchange_strong(first, made.get(), std::memory_order_acq_rel)) {
    first = made.release();
  }
  return first;
}

result<void> cuda_driver::resolve(void* library) {
  const char* missing = nullptr;
  const auto find = [library, &missing](auto& function, const char* name) {
    // By dlsym and not by cuGetProcAddress, whose own signature has changed: the versioned names
    // are the ones that <cuda.h> declares, so what is found is what is called.
    function =
        reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(library, name));
    if (function == nullptr) missing = name;
  };
#define HEADRACE_TEXT_OF(name) #name
#define HEADRACE_TEXT(name) HEADRACE_TEXT_OF(name)
#define HEADRACE_FIND(name) find(this->name, HEADRACE_TEXT(name));
  HEADRACE_CUDA_POOL_FUNCTIONS(HEADRACE_FIND)
  has_pools_ = missing == nullptr;
  missing = nullptr;
  HEADRACE_CUDA_FUNCTIONS(HEADRACE_FIND)
#undef HEADRACE_FIND
#undef HEADRACE_TEXT
#undef HEADRACE_TEXT_OF
  if (missing != nullptr) {
    return headrace::failure{
        error(errc::unsupported, "the CUDA driver (libcuda.so.1) has no " + std::string(missing) +
                                     ": headrace needs one for CUDA 11.2 or newer")};
  }
  return {};
}

result<void> cuda_driver::initialise() const {
  if (forked()) return headrace::failure{forked_failure()};
  int version = 0;
  CUresult code = this->cuDriverGetVersion(&version);
  if (code == CUDA_SUCCESS && version < oldest_driver) {
    return headrace::failure{error(
        errc::unsupported, "the CUDA driver is one for CUDA " + std::to_string(version / 1000) +
                               "." + std::to_string(version % 1000 / 10) +
                               ": headrace needs one for CUDA 11.2 or newer")};
  }
  if (code == CUDA_SUCCESS) {
    // Before the call: a child that is forked during it cannot use the driver either.
    initialised_in.store(::getpid(), std::memory_order_relaxed);
    code = this->cuInit(0);
  }
  static std::atomic<bool> worked{false};
  if (code == CUDA_SUCCESS) {
    worked.store(true, std::memory_order_relaxed);
    return {};
  }
  // Where it has never worked a child may try for itself.
  if (!worked.load(std::memory_order_relaxed)) initialised_in.store(0, std::memory_order_relaxed);
  if (code == CUDA_ERROR_NO_DEVICE) {
    return headrace::failure{
        error(errc::invalid_request,
              "the CUDA driver sees no device on this machine (CUDA_VISIBLE_DEVICES may "
              "hide those that there are)")};
  }
  const std::string doing = "cannot initialise the CUDA driver";
  if (code == CUDA_ERROR_UNKNOWN) {
    return headrace::failure{
        error(errc::unavailable,
              doing + ": it does not know why either; nvidia-smi shows whether it works")};
  }
  return headrace::failure{failure(code, doing)};
}

bool cuda_driver::forked() noexcept {
  const pid_t owner = initialised_in.load(std::memory_order_relaxed);
  return owner != 0 && owner != ::getpid();
}

error cuda_driver::failure(CUresult code, const std::string& doing) const {
  // The driver says "not initialised" where somebody else initialised it before a fork, too.
  if (forked() || code == CUDA_ERROR_NOT_INITIALIZED) return forked_failure();
  const char* name = nullptr;
  const char* text = nullptr;
  // Neither needs a context, and both answer when it is dead.
  if (this->cuGetErrorName(code, &name) != CUDA_SUCCESS || name == nullptr) name = "CUDA error";
  if (this->cuGetErrorString(code, &text) != CUDA_SUCCESS || text == nullptr) text = "unknown";
  std::string message = doing + ": " + text + " (" + name + " " + std::to_string(code) + ")";
  if (kills_the_context(code)) {
    message +=
        ". The device's context is lost for this process, in which nothing works on that device any "
        "more: start the process anew";
    return error(errc::unavailable, std::move(message));
  }
  constexpr int taken = 46;  // CUDA_ERROR_DEVICE_UNAVAILABLE, which older headers lack
  switch (static_cast<int>(code)) {
    case taken:
      message += ": another process has the device for itself";
      break;
    case CUDA_ERROR_INVALID_HANDLE:
    case CUDA_ERROR_INVALID_CONTEXT:
      message += ": a stream must be one of this device and must not have been destroyed";
      break;
    case CUDA_ERROR_STUB_LIBRARY:
      message +=
          ": the libcuda.so.1 that was found is the toolkit's stub, put the driver's before it";
      break;
    case CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:
      message += ": the driver's library and its kernel module differ, reboot or install them anew";
      break;
    default:
      break;
  }
  return error(kind_of(code), std::move(message));
}

}  // namespace headrace::detail
