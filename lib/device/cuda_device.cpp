#include <headrace/device/cuda_device.hpp>

#include "device/cuda_context.hpp"
#include "device/cuda_memory.hpp"

#include <map>
#include <mutex>
#include <utility>

namespace headrace {
namespace {

struct open_devices {
  std::mutex mutex;
  std::map<std::uint32_t, std::weak_ptr<cuda_device>> known;
};

// Never destroyed: devices may be opened while static objects are torn down.
open_devices& registry() {
  static auto* const instance = new open_devices;
  return *instance;
}

}  // namespace

cuda_device::cuda_device(std::shared_ptr<detail::cuda_context> retained) noexcept
    : context_(std::move(retained)) {}

cuda_device::~cuda_device() = default;

result<std::shared_ptr<cuda_device>> cuda_device::open(std::uint32_t index) {
  // Before the mutex: a child must not wait for one that a thread of its parent held.
  const auto driver = detail::cuda_driver::load();
  if (!driver) return failure{driver.error()};
  const auto initialised = (*driver)->initialise();
  if (!initialised) return failure{initialised.error()};
  auto& devices = registry();
  // Held while the driver makes the context: whoever asks meanwhile wants the same.
  const std::lock_guard lock(devices.mutex);
  auto& known = devices.known[index];
  if (auto opened = known.lock()) return opened;
  auto retained = detail::cuda_context::retain(**driver, index);
  if (!retained) {
    devices.known.erase(index);
    return failure{retained.error()};
  }
  std::shared_ptr<cuda_device> opened(new cuda_device(std::move(*retained)));
  known = opened;
  return opened;
}

std::uint32_t cuda_device::index() const noexcept { return context_->index(); }

const std::string& cuda_device::name() const noexcept { return context_->name(); }

std::shared_ptr<allocator> cuda_device::memory(blocking_pool& helpers, cuda_stream freed_on,
                                               std::size_t idle_limit) {
  return detail::make_cuda_memory(shared_from_this(), helpers, freed_on, idle_limit);
}

result<void> cuda_device::check(cuda_stream stream) const {
  constexpr const char* doing = "use the stream on";
  const auto& driver = context_->driver();
  const detail::context_scope here(*context_);
  if (here.state() != CUDA_SUCCESS) return failure{context_->failure(here.state(), doing)};
  auto ordered = context_->check_order(stream);
  if (!ordered || stream == nullptr || stream == CU_STREAM_LEGACY) return ordered;
  CUcontext owner = nullptr;
  CUresult code = driver.cuStreamGetCtx(stream, &owner);
  if (code == CUDA_SUCCESS && owner != context_->handle()) {
    return failure{error(errc::invalid_request,
                         "the stream is not one of the primary context of cuda:" +
                             std::to_string(index()) + ": create it where that is current")};
  }
  if (code == CUDA_SUCCESS) code = driver.cuStreamQuery(stream);
  if (code != CUDA_SUCCESS && code != CUDA_ERROR_NOT_READY)
    return failure{context_->failure(code, doing)};
  return {};
}

result<void> cuda_device::read(std::span<std::byte> to, const std::byte* from) const {
  constexpr const char* doing = "read memory of";
  if (to.empty()) return {};
  const auto& driver = context_->driver();
  const detail::context_scope here(*context_);
  if (here.state() != CUDA_SUCCESS) return failure{context_->failure(here.state(), doing)};
  // On a stream of its own: the default stream waits for others', and may not be used at all while
  // a graph is captured somewhere.
  CUstream stream = nullptr;
  CUresult code = driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
  if (code != CUDA_SUCCESS) return failure{context_->failure(code, doing)};
  const CUresult queued =
      driver.cuMemcpyDtoHAsync(to.data(), reinterpret_cast<CUdeviceptr>(from), to.size(), stream);
  // In any case: the memory is the driver's until then.
  const CUresult ended = driver.cuStreamSynchronize(stream);
  static_cast<void>(driver.cuStreamDestroy(stream));
  code = queued != CUDA_SUCCESS ? queued : ended;
  if (code != CUDA_SUCCESS) return failure{context_->failure(code, doing)};
  return {};
}

}  // namespace headrace
