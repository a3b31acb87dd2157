// The functions of <cuda.h> that the fake has. The header's macros give them the versioned names of
// a real library.
#include "fake_cuda_control.h"
#include "fake_driver.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <thread>

namespace fake_cuda {
namespace {

using lock_type = std::unique_lock<std::mutex>;

/// What a call demands, and what it is.
enum demand : unsigned {
  nothing = 0,
  initialised = 1,    ///< cuInit has been called.
  in_context = 2,     ///< A context is current.
  gives_back = 4,     ///< Does what it does when the device is lost, too, and then says so.
  breaks_capture = 8  ///< Not to be called while a graph is captured, but in relaxed mode.
};

/// The way into the fake: counts the call, checks what it may, fails it if that is planned, and
/// has `body(lock, machine, context)` do the rest.
template <class Body>
CUresult enter(const char* function, unsigned demands, Body body) {
  machine& all = machine::instance();
  // A real driver is as useless in a forked child, whose copy of the mutex may be locked for ever.
  if (all.forked()) return CUDA_ERROR_NOT_INITIALIZED;
  lock_type lock(all.mutex);
  const std::uint64_t nth = ++all.calls[function];
  thread_state& thread = thread_state::here();
  if (thread.in_host_function) {
    all.violation(std::string(function) + " was called within a host function");
    return CUDA_ERROR_NOT_PERMITTED;
  }
  const CUresult planned = all.planned(function, nth);
  const std::shared_ptr<context> current = thread.current.empty() ? nullptr : thread.current.back();
  if (planned != CUDA_SUCCESS) {
    if (loses_context(planned) && current != nullptr) all.lose(*current->of, planned);
    if ((demands & gives_back) == 0) return planned;
  }
  if ((demands & (initialised | in_context)) != 0 && !all.initialised)
    return CUDA_ERROR_NOT_INITIALIZED;
  if ((demands & in_context) != 0) {
    if (current == nullptr || current->gone) {
      all.violation(std::string(function) + " was called without a current context" +
                    (current == nullptr ? "" : ": the one there was has been released"));
      return current == nullptr ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_CONTEXT_IS_DESTROYED;
    }
    const CUresult lost = current->of->lost;
    if (lost != CUDA_SUCCESS && (demands & gives_back) == 0) return lost;
  }
  if ((demands & breaks_capture) != 0 && all.capturing &&
      thread.mode != CU_STREAM_CAPTURE_MODE_RELAXED) {
    all.violation(std::string(function) +
                  " was called, not in relaxed mode, while a graph was captured elsewhere");
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  const CUresult code = body(lock, all, current);
  if (code == CUDA_SUCCESS && current != nullptr && (demands & in_context) != 0 &&
      current->of->lost != CUDA_SUCCESS)
    return current->of->lost;
  return code != CUDA_SUCCESS ? code : planned;
}

using context_ptr = std::shared_ptr<context>;

CUcontext handle_of(const context_ptr& of) noexcept {
  return reinterpret_cast<CUcontext>(of.get());
}

/// The live context behind a handle; null where there is none.
context_ptr context_of(machine& all, CUcontext handle) {
  for (const auto& [ordinal, one] : all.devices) {
    if (one->primary != nullptr && handle_of(one->primary) == handle) return one->primary;
  }
  return nullptr;
}

bool valid(const machine& all, CUdevice ordinal) noexcept {
  return ordinal >= 0 && ordinal < all.now.devices;
}

/// Checks one side of a copy that is device memory, and translates it for the host.
CUresult device_side(machine& all, CUdeviceptr address, std::size_t size, const char* what,
                     std::byte*& host, std::uint64_t& number) {
  const allocation* const found = all.find(address, size);
  if (found == nullptr) {
    all.violation(std::string(what) + " of " + std::to_string(size) +
                  " bytes that are not within an allocation of the device");
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (found->going) {
    all.violation(std::string(what) + " of device memory whose free had been queued");
    return CUDA_ERROR_INVALID_VALUE;
  }
  host = all.host_address(address);
  number = found->number;
  return CUDA_SUCCESS;
}

/// Queues a copy. `pinned`: the host's side must be.
CUresult queue_copy(machine& all, const std::shared_ptr<stream>& into, direction towards,
                    CUdeviceptr to, CUdeviceptr from, std::size_t size, bool must_be_pinned) {
  operation what{.what = action::copy, .towards = towards, .size = size};
  CUresult code = CUDA_SUCCESS;
  if (towards == direction::to_host) {
    what.to = reinterpret_cast<std::byte*>(to);
  } else {
    code = device_side(all, to, size, "a copy into", what.to, what.to_number);
    if (code != CUDA_SUCCESS) return code;
  }
  if (towards == direction::to_device) {
    what.from = reinterpret_cast<const std::byte*>(from);
  } else {
    std::byte* source = nullptr;
    code = device_side(all, from, size, "a copy out", source, what.from_number);
    if (code != CUDA_SUCCESS) return code;
    what.from = source;
  }
  if (towards != direction::within) {
    const void* const host = towards == direction::to_device ? static_cast<const void*>(what.from)
                                                             : static_cast<const void*>(what.to);
    pinned_range* const range = all.find_pinned(host, size);
    if (range != nullptr) {
      what.pinned = range->number;
      ++range->queued;
    } else if (must_be_pinned) {
      all.violation("a copy of " + std::to_string(size) + " bytes from memory that is not pinned");
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  if (towards == direction::to_device && all.now.check_bytes) {
    what.checksum = checksum_of(what.from, size);
    what.checked = true;
  }
  all.push(into, std::move(what));
  return CUDA_SUCCESS;
}

CUresult queue_fill(machine& all, const std::shared_ptr<stream>& into, CUdeviceptr to,
                    unsigned char filling, std::size_t size) {
  operation what{.what = action::fill, .size = size, .filling = filling};
  const CUresult code = device_side(all, to, size, "a fill", what.to, what.to_number);
  if (code != CUDA_SUCCESS) return code;
  all.push(into, std::move(what));
  return CUDA_SUCCESS;
}

memory_pool* pool_of(machine& all, CUmemoryPool handle) {
  for (const auto& [ordinal, one] : all.devices) {
    if (reinterpret_cast<CUmemoryPool>(&one->default_pool) == handle) return &one->default_pool;
  }
  const auto found = all.pools.find(handle);
  return found == all.pools.end() ? nullptr : found->second.get();
}

CUresult allocate_in_order(machine& all, const context_ptr& current, device& of, CUdeviceptr* out,
                           std::size_t size, CUstream handle) {
  if (!all.now.pools) return CUDA_ERROR_NOT_SUPPORTED;
  const auto on = all.find_stream(handle, current);
  if (on == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  std::uint64_t number = 0;
  const CUresult code = all.allocate(of, size, current, *out, number);
  if (code != CUDA_SUCCESS) return code;
  allocation& made = *all.find(number);
  made.ready = false;
  made.ordered = true;
  all.push(on, {.what = action::ready, .number = number});
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace fake_cuda

using namespace fake_cuda;

#define FAKE_CUDA extern "C" __attribute__((visibility("default")))
// What follows is the body of a call: `all`, the machine, `current`, the context, `lock`, its
// mutex.
#define FAKE_BODY                                                        \
  [&]([[maybe_unused]] lock_type & lock, [[maybe_unused]] machine & all, \
      [[maybe_unused]] const context_ptr& current) -> CUresult

// --- The driver --------------------------------------------------------------------------------

FAKE_CUDA CUresult CUDAAPI cuInit(unsigned flags) {
  return enter(
      __func__, nothing, FAKE_BODY {
        if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
        const std::chrono::milliseconds takes(all.initialised ? 0 : all.now.init_ms);
        if (takes.count() != 0) {
          lock.unlock();
          std::this_thread::sleep_for(takes);
          lock.lock();
        }
        if (all.now.devices == 0) return CUDA_ERROR_NO_DEVICE;
        all.initialise();
        return CUDA_SUCCESS;
      });
}

FAKE_CUDA CUresult CUDAAPI cuDriverGetVersion(int* version) {
  return enter(
      __func__, nothing, FAKE_BODY {
        if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
        *version = all.now.driver;
        return CUDA_SUCCESS;
      });
}

#define FAKE_ERRORS(USE)                                                                         \
  USE(CUDA_SUCCESS, "no error")                                                                  \
  USE(CUDA_ERROR_INVALID_VALUE, "invalid argument")                                              \
  USE(CUDA_ERROR_OUT_OF_MEMORY, "out of memory")                                                 \
  USE(CUDA_ERROR_NOT_INITIALIZED, "initialization error")                                        \
  USE(CUDA_ERROR_DEINITIALIZED, "driver shutting down")                                          \
  USE(CUDA_ERROR_STUB_LIBRARY, "CUDA driver is a stub library")                                  \
  USE(CUDA_ERROR_DEVICE_UNAVAILABLE, "CUDA-capable device(s) is/are busy or unavailable")        \
  USE(CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected")                                \
  USE(CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal")                                       \
  USE(CUDA_ERROR_INVALID_CONTEXT, "invalid device context")                                      \
  USE(CUDA_ERROR_ECC_UNCORRECTABLE, "uncorrectable ECC error encountered")                       \
  USE(CUDA_ERROR_INVALID_HANDLE, "invalid resource handle")                                      \
  USE(CUDA_ERROR_NOT_FOUND, "named symbol not found")                                            \
  USE(CUDA_ERROR_NOT_READY, "device not ready")                                                  \
  USE(CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered")                    \
  USE(CUDA_ERROR_LAUNCH_TIMEOUT, "the launch timed out and was terminated")                      \
  USE(CUDA_ERROR_CONTEXT_IS_DESTROYED, "context is destroyed")                                   \
  USE(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,                                                 \
      "part or all of the requested memory range is already mapped")                             \
  USE(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED,                                                     \
      "pointer does not correspond to a registered memory region")                               \
  USE(CUDA_ERROR_HARDWARE_STACK_ERROR, "hardware stack error")                                   \
  USE(CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure")                                    \
  USE(CUDA_ERROR_NOT_PERMITTED, "operation not permitted")                                       \
  USE(CUDA_ERROR_NOT_SUPPORTED, "operation not supported")                                       \
  USE(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH,                                                         \
      "system has unsupported display driver / cuda driver combination")                         \
  USE(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "operation not permitted when stream is capturing") \
  USE(CUDA_ERROR_UNKNOWN, "unknown error")

FAKE_CUDA CUresult CUDAAPI cuGetErrorName(CUresult code, const char** text) {
  return enter(
      __func__, nothing, FAKE_BODY {
        *text = nullptr;
        switch (code) {
#define FAKE_NAME(value, description) \
  case value:                         \
    *text = #value;                   \
    break;
          FAKE_ERRORS(FAKE_NAME)
#undef FAKE_NAME
          default:
            return CUDA_ERROR_INVALID_VALUE;
        }
        return CUDA_SUCCESS;
      });
}

FAKE_CUDA CUresult CUDAAPI cuGetErrorString(CUresult code, const char** text) {
  return enter(
      __func__, nothing, FAKE_BODY {
        *text = nullptr;
        switch (code) {
#define FAKE_TEXT(value, description) \
  case value:                         \
    *text = description;              \
    break;
          FAKE_ERRORS(FAKE_TEXT)
#undef FAKE_TEXT
          default:
            return CUDA_ERROR_INVALID_VALUE;
        }
        return CUDA_SUCCESS;
      });
}

// --- Devices -----------------------------------------------------------------------------------

FAKE_CUDA CUresult CUDAAPI cuDeviceGetCount(int* count) {
  return enter(
      __func__, initialised, FAKE_BODY {
        *count = all.now.devices;
        return CUDA_SUCCESS;
      });
}

FAKE_CUDA CUresult CUDAAPI cuDeviceGet(CUdevice* out, int ordinal) {
  return enter(
      __func__, initialised, FAKE_BODY {
        if (!valid(all, ordinal)) return CUDA_ERROR_INVALID_DEVICE;
        *out = ordinal;
        return CUDA_SUCCESS;
      });
}

FAKE_CUDA CUresult CUDAAPI cuDeviceGetName(char* name, int length, CUdevice which) {
  return enter(
      __func__, initialised, FAKE_BODY {
        if (!valid(all, which)) return CUDA_ERROR_INVALID_DEVICE;
        std::snprintf(name, static_cast<std::size_t>(length), "Fake device %d", which);
        return CUDA_SUCCESS;
      });
}

FAKE_CUDA CUresult CUDAAPI cuDeviceGetAttribute(int* value, CUdevice_attribute attribute,
                                                CUdevice which) {
  return enter(
      __func__, initialised, FAKE_BODY {
        if (!valid(all, which)) return CUDA_ERROR_INVALID_DEVICE;
        switch (attribute) {
          case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED:
            *value = all.now.pools ? 1 : 0;
            break;
          case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
          case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:
          case CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED:
          case CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM:
            *value = 1;
            break;
          case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT:
            *value = 2;
            break;
          case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
            *value = 9;
            break;
          default:
            *value = 0;
        }
        return CUDA_SUCCESS;
      });
}

FAKE_CUDA CUresult CUDAAPI cuDeviceTotalMem(std::size_t* bytes, CUdevice which) {
  return enter(
      __func__, initialised, FAKE_BODY {
        if (!valid(all, which)) return CUDA_ERROR_INVALID_DEVICE;
        *bytes = all.now.memory;
        return CUDA_SUCCESS;
      });
}

// --- Contexts ----------------------------------------------------------------------------------

FAKE_CUDA CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext* out, CUdevice which) {
  return enter(
      __func__, initialised, FAKE_BODY {
        if (!valid(all, which)) return CUDA_ERROR_INVALID_DEVICE;
        device& of = all.at(which);
        if (of.lost != CUDA_SUCCESS) return of.lost;
        if (of.primary == nullptr) {
          of.primary = std::make_shared<context>();
          of.primary->of = &of;
        }
        ++of.references;
        *out = handle_of(of.primary);
        return CUDA_SUCCESS;
      });
}

FAKE_CUDA CUresult CUDAAPI cuDevicePrimaryCtxRelease(CUdevice which) {
  return enter(
      __func__, initialised | gives_back, FAKE_BODY {
        if (!valid(all, which)) return CUDA_ERROR_INVALID_DEVICE;
        device& of = all.at(which);
        if (of.references == 0) {
          all.violation("the context of cuda:" + std::to_string(which) +
                        " was released more often than retained");
          return CUDA_ERROR_INVALID_CONTEXT;
        }
        if (--of.references == 0) all.release_context(lock, of);
        return CUDA_SUCCESS;
      });
}

FAKE_CUDA CUresult CUDAAPI cuDevicePrimaryCtxGetState(CUdevice which, unsigned* flags,
                                                      int* active) {
  return enter(
      __func__, initialised, FAKE_BODY {
        if (!valid(all, which)) return CUDA_ERROR_INVALID_DEVICE;
        const device& of = all.at(which);
        *flags = of.flags;
        *active = of.primary != nullptr ? 1 : 0;
        return CUDA_SUCCESS;
      });
}

FAKE_CUDA CUresult CUDAAPI cuDevicePrimaryCtxSetFlags(CUdevice which, unsigned flags) {
  return enter(
      __func__, initialised, FAKE_BODY {
        if (!valid(all, which)) return CUDA_ERROR_INVALID_DEVICE;
        all.at(which).flags = flags;
        return CUDA_SUCCESS;
      });
}

FAKE_CUDA CUresult CUDAAPI cuCtxPushCurrent(CUcontext handle) {
  return enter(
      __func__, initialised | gives_back, FAKE_BODY {
        auto found = context_of(all, handle);
        if (found == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
        thread_state::here().current.push_back(std::move(found));
        return CUDA_SUCCESS;
      });
}

FAKE_CUDA CUresult CUDAAPI cuCtxPopCurrent(CUcontext* out) {
  return enter(
      __func__, initialised | gives_back, FAKE_BODY {
        auto& stack = thread_state::here().current;
        if (stack.empty()) {
          all.violation("a context was popped where none was current");
          return CUDA_ERROR_INVALID_CONTEXT;
        }
        if (out != nullptr) *out = handle_of(stack.back());
        stack.pop_back();
        return CUDA_SUCCESS;
      });
}

FAKE_CUDA CUresult CUDAAPI cuCtxSetCurrent(CUcontext handle) {
  return enter(
      __func__, initialised | gives_back, FAKE_BODY {
        thread_state& thread = thread_state::here();
        auto found = context_of(all, handle);
        if (handle != nullptr && found == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
        if (!thread.current.empty()) thread.current.pop_back();
        if (found != nullptr) thread.current.push_back(std::move(found));
        thread.set_current = true;
        return CUDA_SUCCESS;
      });
}

FAKE_CUDA CUresult CUDAAPI cuCtxGetCurrent(CUcontext* out) {
  return enter(
      __func__, initialised, FAKE_BODY {
        *out = current == nullptr ? nullptr : handle_of(current);
        return CUDA_SUCCESS;
      });
}

FAKE_CUDA CUresult CUDAAPI cuCtxGetDevice(CUdevice* out) {
  return enter(
      __func__, in_context, FAKE_BODY {
        *out = current->of->ordinal;
        return CUDA_SUCCESS;
      });
}

FAKE_CUDA CUresult CUDAAPI cuCtxSynchronize() {
  return enter(
      __func__, in_context | breaks_capture, FAKE_BODY { return all.wait(lock, current); });
}

FAKE_CUDA CUresult CUDAAPI cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  return enter(
      __func__, in_context, FAKE_BODY {
        if (least != nullptr) *least = 0;
        if (greatest != nullptr) *greatest = -5;
        return CUDA_SUCCESS;
      });
}

FAKE_CUDA CUresult CUDAAPI cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  return enter(
      __func__, initialised | gives_back, FAKE_BODY {
        std::swap(*mode, thread_state::here().mode);
        return CUDA_SUCCESS;
      });
}

// --- Streams -----------------------------------------------------------------------------------

FAKE_CUDA CUresult CUDAAPI cuStreamCreateWithPriority(CUstream* out, unsigned flags, int priority) {
  return enter(
      __func__, in_context, FAKE_BODY {
        if ((flags & ~static_cast<unsigned>(CU_STREAM_NON_BLOCKING)) != 0)
          return CUDA_ERROR_INVALID_VALUE;
        auto made = all.make_stream(current, flags, std::clamp(priority, -5, 0));
        if (made == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
        *out = reinterpret_cast<CUstream>(made.get());
        all.streams.emplace(*out, std::move(made));
        return CUDA_SUCCESS;
      });
}

FAKE_CUDA CUresult CUDAAPI cuStreamCreate(CUstream* out, unsigned flags) {
  return enter(
      __func__, in_context, FAKE_BODY {
        if ((flags & ~static_cast<unsigned>(CU_STREAM_NON_BLOCKING)) != 0)
          return CUDA_ERROR_INVALID_VALUE;
        auto made = all.make_stream(current, flags, 0);
        if (made == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
        *out = reinterpret_cast<CUstream>(made.get());
        all.streams.emplace(*out, std::move(made));
        return CUDA_SUCCESS;
      });
}

FAKE_CUDA CUresult CUDAAPI cuStreamDestroy(CUstream handle) {
  return enter(
      __func__, in_context | gives_back, FAKE_BODY {
        const auto found = all.streams.find(handle);
        if (found == all.streams.end()) {
          all.violation("a stream was destroyed that there is not");
          return CUDA_ERROR_INVALID_HANDLE;
        }
        // What is queued still runs.
        all.close(found->second);
        all.streams.erase(found);
        return CUDA_SUCCESS;
      });
}

FAKE_CUDA CUresult CUDAAPI cuStreamGetCtx(CUstream handle, CUcontext* out) {
  return enter(
      __func__, initialised, FAKE_BODY {
        const auto on = all.find_stream(handle, current);
        if (on == nullptr) return CUDA_ERROR_INVALID_HANDLE;
        *out = handle_of(on->of);
        return CUDA_SUCCESS;
      });
}

FAKE_CUDA CUresult CUDAAPI cuStreamGetFlags(CUstream handle, unsigned* flags) {
  return enter(
      __func__, in_context, FAKE_BODY {
        const auto on = all.find_stream(handle, current);
        if (on == nullptr) return CUDA_ERROR_INVALID_HANDLE;
        *flags = on->flags;
        return CUDA_SUCCESS;
      });
}

FAKE_CUDA CUresult CUDAAPI cuStreamGetPriority(CUstream handle, int* priority) {
  return enter(
      __func__, in_context, FAKE_BODY {
        const auto on = all.find_stream(handle, current);
        if (on == nullptr) return CUDA_ERROR_INVALID_HANDLE;
        *priority = on->priority;
        return CUDA_SUCCESS;
      });
}

FAKE_CUDA CUresult CUDAAPI cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus* status) {
  return enter(
      __func__, in_context, FAKE_BODY {
        const auto on = all.find_stream(handle, current);
        if (on == nullptr) return CUDA_ERROR_INVALID_HANDLE;
        *status = on->capturing ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
        return CUDA_SUCCESS;
      });
}

FAKE_CUDA CUresult CUDAAPI cuStreamQuery(CUstream handle) {
  return enter(
      __func__, in_context | breaks_capture, FAKE_BODY {
        const auto on = all.find_stream(handle, current);
        if (on == nullptr) return CUDA_ERROR_INVALID_HANDLE;
        if (on->capturing) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        if (on->of->of->lost != CUDA_SUCCESS) return on->of->of->lost;
        return on->finished == on->queued ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
      });
}

FAKE_CUDA CUresult CUDAAPI cuStreamSynchronize(CUstream handle) {
  return enter(
      __func__, in_context | breaks_capture, FAKE_BODY {
        const auto on = all.find_stream(handle, current);
        if (on == nullptr) return CUDA_ERROR_INVALID_HANDLE;
        return all.wait(lock, on);
      });
}

FAKE_CUDA CUresult CUDAAPI cuStreamWaitEvent(CUstream handle, CUevent what, unsigned) {
  return enter(
      __func__, in_context, FAKE_BODY {
        const auto on = all.find_stream(handle, current);
        const auto found = all.events.find(what);
        if (on == nullptr || found == all.events.end()) return CUDA_ERROR_INVALID_HANDLE;
        const auto& latest = found->second->latest;
        if (latest != nullptr && !latest->reached)
          all.push(on, {.what = action::wait, .mark = latest});
        return CUDA_SUCCESS;
      });
}

FAKE_CUDA CUresult CUDAAPI cuLaunchHostFunc(CUstream handle, CUhostFn function, void* data) {
  return enter(
      __func__, in_context, FAKE_BODY {
        const auto on = all.find_stream(handle, current);
        if (on == nullptr) return CUDA_ERROR_INVALID_HANDLE;
        if (function == nullptr) return CUDA_ERROR_INVALID_VALUE;
        all.push(on, {.what = action::host, .call = function, .data = data});
        return CUDA_SUCCESS;
      });
}

// --- Events ------------------------------------------------------------------------------------

FAKE_CUDA CUresult CUDAAPI cuEventCreate(CUevent* out, unsigned flags) {
  return enter(
      __func__, in_context, FAKE_BODY {
        auto made = std::make_unique<event>();
        made->of = current;
        made->flags = flags;
        *out = reinterpret_cast<CUevent>(made.get());
        all.events.emplace(*out, std::move(made));
        return CUDA_SUCCESS;
      });
}

FAKE_CUDA CUresult CUDAAPI cuEventDestroy(CUevent handle) {
  return enter(
      __func__, in_context | gives_back, FAKE_BODY {
        if (all.events.erase(handle) == 0) {
          all.violation("an event was destroyed that there is not");
          return CUDA_ERROR_INVALID_HANDLE;
        }
        return CUDA_SUCCESS;
      });
}

FAKE_CUDA CUresult CUDAAPI cuEventRecord(CUevent handle, CUstream stream_handle) {
  return enter(
      __func__, in_context, FAKE_BODY {
        const auto on = all.find_stream(stream_handle, current);
        const auto found = all.events.find(handle);
        if (on == nullptr || found == all.events.end() || found->second->of != on->of)
          return CUDA_ERROR_INVALID_HANDLE;
        auto mark = std::make_shared<record>();
        mark->of = on->of;
        found->second->latest = mark;
        all.push(on, {.what = action::record, .mark = std::move(mark)});
        return CUDA_SUCCESS;
      });
}

FAKE_CUDA CUresult CUDAAPI cuEventQuery(CUevent handle) {
  return enter(
      __func__, in_context | breaks_capture, FAKE_BODY {
        const auto found = all.events.find(handle);
        if (found == all.events.end()) return CUDA_ERROR_INVALID_HANDLE;
        const auto& latest = found->second->latest;
        if (latest == nullptr) return CUDA_SUCCESS;
        if (latest->of->of->lost != CUDA_SUCCESS) return latest->of->of->lost;
        return latest->reached ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
      });
}

FAKE_CUDA CUresult CUDAAPI cuEventSynchronize(CUevent handle) {
  return enter(
      __func__, in_context | breaks_capture, FAKE_BODY {
        const auto found = all.events.find(handle);
        if (found == all.events.end()) return CUDA_ERROR_INVALID_HANDLE;
        const auto latest = found->second->latest;
        if (latest == nullptr) return CUDA_SUCCESS;
        const device& of = *latest->of->of;
        all.changed.wait(lock, [&] { return latest->reached || of.lost != CUDA_SUCCESS; });
        return of.lost;
      });
}

FAKE_CUDA CUresult CUDAAPI cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
  return enter(
      __func__, in_context, FAKE_BODY {
        const auto first = all.events.find(start);
        const auto last = all.events.find(end);
        if (first == all.events.end() || last == all.events.end()) return CUDA_ERROR_INVALID_HANDLE;
        const auto& from = first->second->latest;
        const auto& to = last->second->latest;
        if (from == nullptr || to == nullptr ||
            ((first->second->flags | last->second->flags) & CU_EVENT_DISABLE_TIMING) != 0)
          return CUDA_ERROR_INVALID_HANDLE;
        if (!from->reached || !to->reached) return CUDA_ERROR_NOT_READY;
        *milliseconds = std::chrono::duration<float, std::milli>(to->at - from->at).count();
        return CUDA_SUCCESS;
      });
}

// --- Device memory -----------------------------------------------------------------------------

FAKE_CUDA CUresult CUDAAPI cuMemGetInfo(std::size_t* free, std::size_t* total) {
  return enter(
      __func__, in_context, FAKE_BODY {
        *total = all.now.memory;
        *free = all.now.memory - std::min(all.now.memory, current->of->used);
        return CUDA_SUCCESS;
      });
}

FAKE_CUDA CUresult CUDAAPI cuMemAlloc(CUdeviceptr* out, std::size_t size) {
  return enter(
      __func__, in_context | breaks_capture, FAKE_BODY {
        std::uint64_t number = 0;
        return all.allocate(*current->of, size, current, *out, number);
      });
}

FAKE_CUDA CUresult CUDAAPI cuMemFree(CUdeviceptr address) {
  return enter(
      __func__, in_context | gives_back | breaks_capture, FAKE_BODY {
        if (address == 0) return CUDA_SUCCESS;
        device* of = nullptr;
        const allocation* const found = all.find(address, 1, &of);
        if (found == nullptr || found->going ||
            address != reinterpret_cast<CUdeviceptr>(of->reserved) + found->offset) {
          all.violation("device memory was freed that there is not");
          return CUDA_ERROR_INVALID_VALUE;
        }
        const std::uint64_t number = found->number;
        // As the real one does: what is queued may still want it.
        all.wait(lock, current);
        if (const allocation* const still = all.find(number)) all.release(*of, still->offset);
        return CUDA_SUCCESS;
      });
}

FAKE_CUDA CUresult CUDAAPI cuMemAllocAsync(CUdeviceptr* out, std::size_t size, CUstream handle) {
  return enter(
      __func__, in_context,
      FAKE_BODY { return allocate_in_order(all, current, *current->of, out, size, handle); });
}

FAKE_CUDA CUresult CUDAAPI cuMemAllocFromPoolAsync(CUdeviceptr* out, std::size_t size,
                                                   CUmemoryPool pool, CUstream handle) {
  return enter(
      __func__, in_context, FAKE_BODY {
        const memory_pool* const found = pool_of(all, pool);
        if (found == nullptr) return CUDA_ERROR_INVALID_VALUE;
        return allocate_in_order(all, current, *found->of, out, size, handle);
      });
}

FAKE_CUDA CUresult CUDAAPI cuMemFreeAsync(CUdeviceptr address, CUstream handle) {
  return enter(
      __func__, in_context | gives_back, FAKE_BODY {
        if (!all.now.pools) return CUDA_ERROR_NOT_SUPPORTED;
        device* of = nullptr;
        allocation* const found = all.find(address, 1, &of);
        if (found == nullptr || found->going ||
            address != reinterpret_cast<CUdeviceptr>(of->reserved) + found->offset) {
          all.violation("device memory was freed that there is not");
          return CUDA_ERROR_INVALID_VALUE;
        }
        const auto on = all.find_stream(handle, current);
        if (on == nullptr) return CUDA_ERROR_INVALID_HANDLE;
        found->going = true;
        all.push(on, {.what = action::free, .number = found->number});
        return CUDA_SUCCESS;
      });
}

FAKE_CUDA CUresult CUDAAPI cuMemPoolCreate(CUmemoryPool* out, const CUmemPoolProps* wanted) {
  return enter(
      __func__, initialised, FAKE_BODY {
        if (!all.now.pools) return CUDA_ERROR_NOT_SUPPORTED;
        if (wanted->allocType != CU_MEM_ALLOCATION_TYPE_PINNED ||
            wanted->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
            !valid(all, wanted->location.id))
          return CUDA_ERROR_INVALID_VALUE;
        auto made = std::make_unique<memory_pool>();
        made->of = &all.at(wanted->location.id);
        *out = reinterpret_cast<CUmemoryPool>(made.get());
        all.pools.emplace(*out, std::move(made));
        return CUDA_SUCCESS;
      });
}

FAKE_CUDA CUresult CUDAAPI cuMemPoolDestroy(CUmemoryPool pool) {
  return enter(
      __func__, initialised | gives_back, FAKE_BODY {
        if (all.pools.erase(pool) == 0) {
          all.violation("a memory pool was destroyed that there is not");
          return CUDA_ERROR_INVALID_VALUE;
        }
        return CUDA_SUCCESS;
      });
}

FAKE_CUDA CUresult CUDAAPI cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute,
                                                 void* value) {
  return enter(
      __func__, initialised, FAKE_BODY {
        memory_pool* const found = pool_of(all, pool);
        if (!all.now.pools) return CUDA_ERROR_NOT_SUPPORTED;
        if (found == nullptr) return CUDA_ERROR_INVALID_VALUE;
        if (attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)
          std::memcpy(&found->release_threshold, value, sizeof found->release_threshold);
        return CUDA_SUCCESS;
      });
}

FAKE_CUDA CUresult CUDAAPI cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute,
                                                 void* value) {
  return enter(
      __func__, initialised, FAKE_BODY {
        const memory_pool* const found = pool_of(all, pool);
        if (!all.now.pools) return CUDA_ERROR_NOT_SUPPORTED;
        if (found == nullptr) return CUDA_ERROR_INVALID_VALUE;
        switch (attribute) {
          case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
            std::memcpy(value, &found->release_threshold, sizeof found->release_threshold);
            return CUDA_SUCCESS;
          case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
          case CU_MEMPOOL_ATTR_USED_MEM_CURRENT: {
            const std::uint64_t used = found->of->used;
            std::memcpy(value, &used, sizeof used);
            return CUDA_SUCCESS;
          }
          default:
            std::memset(value, 0, sizeof(int));
            return CUDA_SUCCESS;
        }
      });
}

FAKE_CUDA CUresult CUDAAPI cuMemPoolTrimTo(CUmemoryPool pool, std::size_t) {
  return enter(
      __func__, initialised, FAKE_BODY {
        if (!all.now.pools) return CUDA_ERROR_NOT_SUPPORTED;
        return pool_of(all, pool) == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
      });
}

FAKE_CUDA CUresult CUDAAPI cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc*,
                                              std::size_t) {
  return enter(
      __func__, initialised, FAKE_BODY {
        if (!all.now.pools) return CUDA_ERROR_NOT_SUPPORTED;
        return pool_of(all, pool) == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
      });
}

FAKE_CUDA CUresult CUDAAPI cuDeviceGetDefaultMemPool(CUmemoryPool* out, CUdevice which) {
  return enter(
      __func__, initialised, FAKE_BODY {
        if (!all.now.pools) return CUDA_ERROR_NOT_SUPPORTED;
        if (!valid(all, which)) return CUDA_ERROR_INVALID_DEVICE;
        *out = reinterpret_cast<CUmemoryPool>(&all.at(which).default_pool);
        return CUDA_SUCCESS;
      });
}

FAKE_CUDA CUresult CUDAAPI cuDeviceGetMemPool(CUmemoryPool* out, CUdevice which) {
  return enter(
      __func__, initialised, FAKE_BODY {
        if (!all.now.pools) return CUDA_ERROR_NOT_SUPPORTED;
        if (!valid(all, which)) return CUDA_ERROR_INVALID_DEVICE;
        device& of = all.at(which);
        *out = of.current_pool != nullptr ? of.current_pool
                                          : reinterpret_cast<CUmemoryPool>(&of.default_pool);
        return CUDA_SUCCESS;
      });
}

FAKE_CUDA CUresult CUDAAPI cuDeviceSetMemPool(CUdevice which, CUmemoryPool pool) {
  return enter(
      __func__, initialised, FAKE_BODY {
        if (!all.now.pools) return CUDA_ERROR_NOT_SUPPORTED;
        if (!valid(all, which) || pool_of(all, pool) == nullptr) return CUDA_ERROR_INVALID_VALUE;
        all.at(which).current_pool = pool;
        return CUDA_SUCCESS;
      });
}

FAKE_CUDA CUresult CUDAAPI cuMemGetAddressRange(CUdeviceptr* base, std::size_t* size,
                                                CUdeviceptr address) {
  return enter(
      __func__, in_context, FAKE_BODY {
        device* of = nullptr;
        const allocation* const found = all.find(address, 1, &of);
        if (found == nullptr) return CUDA_ERROR_NOT_FOUND;
        if (base != nullptr) *base = reinterpret_cast<CUdeviceptr>(of->reserved) + found->offset;
        if (size != nullptr) *size = found->size;
        return CUDA_SUCCESS;
      });
}

FAKE_CUDA CUresult CUDAAPI cuPointerGetAttribute(void* data, CUpointer_attribute attribute,
                                                 CUdeviceptr address) {
  return enter(
      __func__, initialised, FAKE_BODY {
        device* of = nullptr;
        const allocation* const found = all.find(address, 1, &of);
        const pinned_range* const range =
            found != nullptr ? nullptr : all.find_pinned(reinterpret_cast<const void*>(address), 1);
        if (found == nullptr && range == nullptr) return CUDA_ERROR_INVALID_VALUE;
        const auto give = [data](auto value) {
          std::memcpy(data, &value, sizeof value);
          return CUDA_SUCCESS;
        };
        switch (attribute) {
          case CU_POINTER_ATTRIBUTE_CONTEXT:
            return give(handle_of(found != nullptr ? found->of : range->of));
          case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
            return give(found != nullptr ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST);
          case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
            return give(found != nullptr ? of->ordinal : range->of->of->ordinal);
          case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
            return give(address);
          case CU_POINTER_ATTRIBUTE_HOST_POINTER:
            if (found != nullptr) return CUDA_ERROR_INVALID_VALUE;
            return give(reinterpret_cast<void*>(address));
          case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
            return give(found != nullptr
                            ? reinterpret_cast<CUdeviceptr>(of->reserved) + found->offset
                            : static_cast<CUdeviceptr>(range->begin));
          case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
            return give(found != nullptr ? found->size : range->size);
          case CU_POINTER_ATTRIBUTE_BUFFER_ID:
            return give(found != nullptr ? found->number : range->number);
          case CU_POINTER_ATTRIBUTE_IS_MANAGED:
            return give(0U);
          default:
            return CUDA_ERROR_NOT_SUPPORTED;
        }
      });
}

// --- Host memory -------------------------------------------------------------------------------

FAKE_CUDA CUresult CUDAAPI cuMemHostAlloc(void** out, std::size_t size, unsigned) {
  return enter(
      __func__, in_context | breaks_capture, FAKE_BODY {
        if (size == 0) return CUDA_ERROR_INVALID_VALUE;
        const std::size_t mapped = (size + 4095) / 4096 * 4096;
        void* const made =
            ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (made == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
        const CUresult code = all.pin(made, mapped, true, current);
        if (code != CUDA_SUCCESS) {
          ::munmap(made, mapped);
          return code;
        }
        *out = made;
        return CUDA_SUCCESS;
      });
}

FAKE_CUDA CUresult CUDAAPI cuMemFreeHost(void* begin) {
  return enter(
      __func__, in_context | gives_back | breaks_capture,
      FAKE_BODY { return all.unpin(lock, begin, true); });
}

FAKE_CUDA CUresult CUDAAPI cuMemHostRegister(void* begin, std::size_t size, unsigned) {
  return enter(
      __func__, in_context | breaks_capture, FAKE_BODY {
        if (begin == nullptr || size == 0) return CUDA_ERROR_INVALID_VALUE;
        return all.pin(begin, size, false, current);
      });
}

FAKE_CUDA CUresult CUDAAPI cuMemHostUnregister(void* begin) {
  return enter(
      __func__, in_context | gives_back | breaks_capture,
      FAKE_BODY { return all.unpin(lock, begin, false); });
}

FAKE_CUDA CUresult CUDAAPI cuMemHostGetDevicePointer(CUdeviceptr* out, void* begin, unsigned) {
  return enter(
      __func__, in_context, FAKE_BODY {
        if (all.find_pinned(begin, 1) == nullptr) return CUDA_ERROR_INVALID_VALUE;
        *out = reinterpret_cast<CUdeviceptr>(begin);
        return CUDA_SUCCESS;
      });
}

// --- Copies ------------------------------------------------------------------------------------

FAKE_CUDA CUresult CUDAAPI cuMemcpyHtoDAsync(CUdeviceptr to, const void* from, std::size_t size,
                                             CUstream handle) {
  return enter(
      __func__, in_context, FAKE_BODY {
        const auto on = all.find_stream(handle, current);
        if (on == nullptr) return CUDA_ERROR_INVALID_HANDLE;
        if (size == 0) return CUDA_SUCCESS;
        return queue_copy(all, on, direction::to_device, to, reinterpret_cast<CUdeviceptr>(from),
                          size, true);
      });
}

FAKE_CUDA CUresult CUDAAPI cuMemcpyDtoHAsync(void* to, CUdeviceptr from, std::size_t size,
                                             CUstream handle) {
  return enter(
      __func__, in_context, FAKE_BODY {
        const auto on = all.find_stream(handle, current);
        if (on == nullptr) return CUDA_ERROR_INVALID_HANDLE;
        if (size == 0) return CUDA_SUCCESS;
        const bool pinned = all.find_pinned(to, size) != nullptr;
        const CUresult code = queue_copy(all, on, direction::to_host,
                                         reinterpret_cast<CUdeviceptr>(to), from, size, false);
        // Into memory that is not pinned it comes back once it is there, as the real one does.
        if (code != CUDA_SUCCESS || pinned) return code;
        return all.wait(lock, on);
      });
}

FAKE_CUDA CUresult CUDAAPI cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, std::size_t size,
                                             CUstream handle) {
  return enter(
      __func__, in_context, FAKE_BODY {
        const auto on = all.find_stream(handle, current);
        if (on == nullptr) return CUDA_ERROR_INVALID_HANDLE;
        if (size == 0) return CUDA_SUCCESS;
        return queue_copy(all, on, direction::within, to, from, size, false);
      });
}

FAKE_CUDA CUresult CUDAAPI cuMemcpyHtoD(CUdeviceptr to, const void* from, std::size_t size) {
  return enter(
      __func__, in_context | breaks_capture, FAKE_BODY {
        if (size == 0) return CUDA_SUCCESS;
        const auto on = all.find_stream(nullptr, current);
        const CUresult code = queue_copy(all, on, direction::to_device, to,
                                         reinterpret_cast<CUdeviceptr>(from), size, false);
        return code != CUDA_SUCCESS ? code : all.wait(lock, on);
      });
}

FAKE_CUDA CUresult CUDAAPI cuMemcpyDtoH(void* to, CUdeviceptr from, std::size_t size) {
  return enter(
      __func__, in_context | breaks_capture, FAKE_BODY {
        if (size == 0) return CUDA_SUCCESS;
        const auto on = all.find_stream(nullptr, current);
        const CUresult code = queue_copy(all, on, direction::to_host,
                                         reinterpret_cast<CUdeviceptr>(to), from, size, false);
        return code != CUDA_SUCCESS ? code : all.wait(lock, on);
      });
}

FAKE_CUDA CUresult CUDAAPI cuMemcpyDtoD(CUdeviceptr to, CUdeviceptr from, std::size_t size) {
  return enter(
      __func__, in_context | breaks_capture, FAKE_BODY {
        if (size == 0) return CUDA_SUCCESS;
        const auto on = all.find_stream(nullptr, current);
        const CUresult code = queue_copy(all, on, direction::within, to, from, size, false);
        return code != CUDA_SUCCESS ? code : all.wait(lock, on);
      });
}

FAKE_CUDA CUresult CUDAAPI cuMemsetD8(CUdeviceptr to, unsigned char filling, std::size_t size) {
  return enter(
      __func__, in_context | breaks_capture, FAKE_BODY {
        if (size == 0) return CUDA_SUCCESS;
        const auto on = all.find_stream(nullptr, current);
        const CUresult code = queue_fill(all, on, to, filling, size);
        return code != CUDA_SUCCESS ? code : all.wait(lock, on);
      });
}

FAKE_CUDA CUresult CUDAAPI cuMemsetD8Async(CUdeviceptr to, unsigned char filling, std::size_t size,
                                           CUstream handle) {
  return enter(
      __func__, in_context, FAKE_BODY {
        const auto on = all.find_stream(handle, current);
        if (on == nullptr) return CUDA_ERROR_INVALID_HANDLE;
        if (size == 0) return CUDA_SUCCESS;
        return queue_fill(all, on, to, filling, size);
      });
}

// --- Entry points by name ----------------------------------------------------------------------

// Each with the version of CUDA that brought it in this form.
#define FAKE_ENTRY_POINTS(USE)                  \
  USE(cuInit, 2000)                             \
  USE(cuDriverGetVersion, 2020)                 \
  USE(cuGetErrorName, 6000)                     \
  USE(cuGetErrorString, 6000)                   \
  USE(cuDeviceGetCount, 2000)                   \
  USE(cuDeviceGet, 2000)                        \
  USE(cuDeviceGetName, 2000)                    \
  USE(cuDeviceGetAttribute, 2000)               \
  USE(cuDeviceTotalMem, 3020)                   \
  USE(cuDevicePrimaryCtxRetain, 7000)           \
  USE(cuDevicePrimaryCtxRelease, 11000)         \
  USE(cuDevicePrimaryCtxGetState, 7000)         \
  USE(cuDevicePrimaryCtxSetFlags, 11000)        \
  USE(cuCtxPushCurrent, 4000)                   \
  USE(cuCtxPopCurrent, 4000)                    \
  USE(cuCtxSetCurrent, 4000)                    \
  USE(cuCtxGetCurrent, 4000)                    \
  USE(cuCtxGetDevice, 2000)                     \
  USE(cuCtxSynchronize, 2000)                   \
  USE(cuCtxGetStreamPriorityRange, 5050)        \
  USE(cuThreadExchangeStreamCaptureMode, 10010) \
  USE(cuStreamCreate, 2000)                     \
  USE(cuStreamCreateWithPriority, 5050)         \
  USE(cuStreamDestroy, 4000)                    \
  USE(cuStreamGetCtx, 9020)                     \
  USE(cuStreamGetFlags, 5050)                   \
  USE(cuStreamGetPriority, 5050)                \
  USE(cuStreamIsCapturing, 10000)               \
  USE(cuStreamQuery, 2000)                      \
  USE(cuStreamSynchronize, 2000)                \
  USE(cuStreamWaitEvent, 3020)                  \
  USE(cuLaunchHostFunc, 10000)                  \
  USE(cuEventCreate, 2000)                      \
  USE(cuEventDestroy, 4000)                     \
  USE(cuEventRecord, 2000)                      \
  USE(cuEventQuery, 2000)                       \
  USE(cuEventSynchronize, 2000)                 \
  USE(cuMemGetInfo, 3020)                       \
  USE(cuMemAlloc, 3020)                         \
  USE(cuMemFree, 3020)                          \
  USE(cuMemAllocAsync, 11020)                   \
  USE(cuMemAllocFromPoolAsync, 11020)           \
  USE(cuMemFreeAsync, 11020)                    \
  USE(cuMemPoolCreate, 11020)                   \
  USE(cuMemPoolDestroy, 11020)                  \
  USE(cuMemPoolSetAttribute, 11020)             \
  USE(cuMemPoolGetAttribute, 11020)             \
  USE(cuMemPoolTrimTo, 11020)                   \
  USE(cuMemPoolSetAccess, 11020)                \
  USE(cuDeviceGetDefaultMemPool, 11020)         \
  USE(cuDeviceGetMemPool, 11020)                \
  USE(cuDeviceSetMemPool, 11020)                \
  USE(cuMemGetAddressRange, 3020)               \
  USE(cuPointerGetAttribute, 4000)              \
  USE(cuMemHostAlloc, 2020)                     \
  USE(cuMemFreeHost, 2000)                      \
  USE(cuMemHostRegister, 6050)                  \
  USE(cuMemHostUnregister, 4000)                \
  USE(cuMemHostGetDevicePointer, 3020)          \
  USE(cuMemcpyHtoDAsync, 3020)                  \
  USE(cuMemcpyDtoHAsync, 3020)                  \
  USE(cuMemcpyDtoDAsync, 3020)                  \
  USE(cuMemcpyHtoD, 3020)                       \
  USE(cuMemcpyDtoH, 3020)                       \
  USE(cuMemcpyDtoD, 3020)                       \
  USE(cuMemsetD8, 3020)                         \
  USE(cuMemsetD8Async, 3020)

#if FAKE_CUDA_DRIVER_DEFAULT >= 11030

namespace fake_cuda {
namespace {

struct entry_point {
  std::string_view name;
  int since;
  void* function;
};

const entry_point entry_points[] = {
#define FAKE_ENTRY(name, since) {#name, since, reinterpret_cast<void*>(&(name))},
    FAKE_ENTRY_POINTS(FAKE_ENTRY)
#undef FAKE_ENTRY
};

CUresult look_up(machine& all, const char* name, void** out, int version,
                 CUdriverProcAddressQueryResult& status) {
  *out = nullptr;
  const auto* const found = std::ranges::find(entry_points, name, &entry_point::name);
  if (found == std::end(entry_points)) {
    status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return CUDA_ERROR_NOT_FOUND;
  }
  if (found->since > version || found->since > all.now.driver) {
    status = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
    return CUDA_ERROR_NOT_FOUND;
  }
  status = CU_GET_PROC_ADDRESS_SUCCESS;
  *out = found->function;
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace fake_cuda

FAKE_CUDA CUresult CUDAAPI cuGetProcAddress(const char* name, void** out, int version, cuuint64_t,
                                            CUdriverProcAddressQueryResult* status) {
  return enter(
      __func__, nothing, FAKE_BODY {
        CUdriverProcAddressQueryResult found{};
        const CUresult code = look_up(all, name, out, version, found);
        if (status != nullptr) *status = found;
        return code;
      });
}

// The form of CUDA 11.3.
#undef cuGetProcAddress
FAKE_CUDA CUresult CUDAAPI cuGetProcAddress(const char* name, void** out, int version, cuuint64_t) {
  return enter(
      __func__, nothing, FAKE_BODY {
        CUdriverProcAddressQueryResult ignored{};
        return look_up(all, name, out, version, ignored);
      });
}

#endif

// --- Control -----------------------------------------------------------------------------------

namespace fake_cuda {
namespace {

std::size_t give_lines(const std::vector<std::string>& lines, char* text, std::size_t size) {
  std::string joined;
  for (const std::string& line : lines) joined += line + '\n';
  if (size != 0) {
    const std::size_t length = std::min(joined.size(), size - 1);
    std::memcpy(text, joined.data(), length);
    text[length] = '\0';
  }
  return lines.size();
}

}  // namespace
}  // namespace fake_cuda

FAKE_CUDA int fake_cuda_configure(const char* text) {
  machine& all = machine::instance();
  const std::lock_guard lock(all.mutex);
  std::string_view left = text;
  int number = 0;
  while (!left.empty()) {
    const auto space = left.find(' ');
    const std::string_view one = left.substr(0, space);
    left = space == std::string_view::npos ? "" : left.substr(space + 1);
    if (one.empty()) continue;
    ++number;
    const auto equals = one.find('=');
    if (equals == std::string_view::npos ||
        !all.now.set(one.substr(0, equals), one.substr(equals + 1)))
      return number;
  }
  return 0;
}

FAKE_CUDA void fake_cuda_reset() {
  machine& all = machine::instance();
  const std::lock_guard lock(all.mutex);
  all.start_over();
}

FAKE_CUDA void fake_cuda_hold() {
  machine& all = machine::instance();
  const std::lock_guard lock(all.mutex);
  all.held = true;
}

FAKE_CUDA void fake_cuda_let_go() {
  machine& all = machine::instance();
  const std::lock_guard lock(all.mutex);
  all.let_go(nullptr);
}

FAKE_CUDA void fake_cuda_hold_stream(void* handle) {
  machine& all = machine::instance();
  const std::lock_guard lock(all.mutex);
  const auto found = all.streams.find(static_cast<CUstream>(handle));
  if (found != all.streams.end()) found->second->held = true;
}

FAKE_CUDA void fake_cuda_let_go_stream(void* handle) {
  machine& all = machine::instance();
  const std::lock_guard lock(all.mutex);
  const auto found = all.streams.find(static_cast<CUstream>(handle));
  if (found != all.streams.end()) all.let_go(found->second.get());
}

FAKE_CUDA void fake_cuda_lose(int ordinal, int code) {
  machine& all = machine::instance();
  const std::lock_guard lock(all.mutex);
  all.lose(all.at(ordinal), static_cast<CUresult>(code));
}

FAKE_CUDA void fake_cuda_capture(void* handle, int active) {
  machine& all = machine::instance();
  const std::lock_guard lock(all.mutex);
  all.capturing = active != 0;
  const auto found = all.streams.find(static_cast<CUstream>(handle));
  if (found != all.streams.end()) found->second->capturing = all.capturing;
}

FAKE_CUDA int fake_cuda_settle(unsigned limit_ms) {
  machine& all = machine::instance();
  lock_type lock(all.mutex);
  const bool settled = all.changed.wait_for(lock, std::chrono::milliseconds(limit_ms),
                                            [&] { return all.count("queued") == 0; });
  return settled ? 0 : -1;
}

FAKE_CUDA std::uint64_t fake_cuda_count(const char* name) {
  machine& all = machine::instance();
  const std::lock_guard lock(all.mutex);
  return all.count(name);
}

FAKE_CUDA unsigned fake_cuda_depth() {
  return static_cast<unsigned>(thread_state::here().current.size());
}

FAKE_CUDA std::size_t fake_cuda_violations(char* text, std::size_t size) {
  machine& all = machine::instance();
  const std::lock_guard lock(all.mutex);
  return give_lines(all.violations, text, size);
}

FAKE_CUDA std::size_t fake_cuda_leaks(char* text, std::size_t size) {
  machine& all = machine::instance();
  const std::lock_guard lock(all.mutex);
  std::vector<std::string> lines;
  for (const auto& [kind, number] : all.leaks())
    lines.push_back(kind + ' ' + std::to_string(number));
  return give_lines(lines, text, size);
}

FAKE_CUDA void* fake_cuda_host_address(std::uint64_t address) {
  machine& all = machine::instance();
  const std::lock_guard lock(all.mutex);
  return all.host_address(address);
}

FAKE_CUDA std::size_t fake_cuda_report(char* json, std::size_t size) {
  machine& all = machine::instance();
  const std::lock_guard lock(all.mutex);
  const std::string text = all.report();
  if (size != 0) {
    const std::size_t length = std::min(text.size(), size - 1);
    std::memcpy(json, text.data(), length);
    json[length] = '\0';
  }
  return text.size();
}
