#include "device/cuda_memory.hpp"

#include "device/cuda_context.hpp"

#include <headrace/base/log.hpp>
#include <headrace/base/sizes.hpp>
#include <headrace/io/blocking_pool.hpp>

#include <atomic>
#include <string>
#include <utility>

namespace headrace::detail {
namespace {

/// What the blocks of one batch share. Lives until the last of them has been dropped.
class batch_owner {
 public:
  batch_owner(std::shared_ptr<cuda_device> of, CUstream allocated_on, CUstream freed_on) noexcept
      : device_(std::move(of)), allocated_on_(allocated_on), freed_on_(freed_on) {}
  batch_owner(const batch_owner&) = delete;
  batch_owner& operator=(const batch_owner&) = delete;

  /// One more block.
  void add() noexcept { references_.fetch_add(1, std::memory_order_relaxed); }

  /// One less; the last one ends the owner. In a forked child without a call to the driver.
  void drop() noexcept {
    // Release and acquire: the last one sees what the others did.
    if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }

  [[nodiscard]] cuda_context& context() const noexcept { return device_->context(); }
  [[nodiscard]] CUstream allocated_on() const noexcept { return allocated_on_; }

  /// Marks where in the order of the stream all of the batch is there.
  [[nodiscard]] CUresult mark() noexcept {
    const auto& driver = context().driver();
    CUevent made = nullptr;
    CUresult code = driver.cuEventCreate(&made, CU_EVENT_DISABLE_TIMING);
    if (code != CUDA_SUCCESS) return code;
    code = driver.cuEventRecord(made, allocated_on_);
    if (code == CUDA_SUCCESS) {
      allocated_ = made;
    } else {
      static_cast<void>(driver.cuEventDestroy(made));
    }
    return code;
  }

  static void release(void* owner, std::byte* data, std::size_t) noexcept {
    auto* const self = static_cast<batch_owner*>(owner);
    self->free(data);
    self->drop();
  }

 private:
  ~batch_owner() {
    if (allocated_ == nullptr) return;
    const context_scope here(context());
    if (here.state() == CUDA_SUCCESS)
      static_cast<void>(context().driver().cuEventDestroy(allocated_));
  }

  void free(std::byte* data) noexcept {
    const auto& driver = context().driver();
    const context_scope here(context());
    CUresult code = here.state();
    if (code == CUDA_ERROR_NOT_INITIALIZED) return;  // a forked child: it has none of this memory
    if (code == CUDA_SUCCESS) {
      const auto address = reinterpret_cast<CUdeviceptr>(data);
      code = allocated_on_ == nullptr ? driver.cuMemFree(address)
                                      : driver.cuMemFreeAsync(address, order());
    }
    // Once a batch: where the context is dead, this is said of every tensor.
    if (code != CUDA_SUCCESS && !complained_.exchange(true, std::memory_order_relaxed)) {
      try {
        log(log_level::warning, context().failure(code, "give memory back on").what());
      } catch (...) {  // NOLINT(bugprone-empty-catch): no memory for the line
      }
    }
  }

  /// The stream on which a block may be freed. While the allocation itself is still to come, nobody
  /// can have used it, and another stream's order knows nothing of it.
  [[nodiscard]] CUstream order() noexcept {
    if (there_.load(std::memory_order_relaxed)) return freed_on_;
    if (allocated_ == nullptr || context().driver().cuEventQuery(allocated_) != CUDA_SUCCESS)
      return allocated_on_;
    there_.store(true, std::memory_order_relaxed);
    return freed_on_;
  }

  const std::shared_ptr<cuda_device> device_;
  const CUstream allocated_on_;  ///< Null: without pools.
  const CUstream freed_on_;
  CUevent allocated_ = nullptr;
  std::atomic<bool> there_{false};
  std::atomic<bool> complained_{false};
  std::atomic<std::size_t> references_{1};
};

struct drop_owner {
  void operator()(batch_owner* owner) const noexcept { owner->drop(); }
};

error out_of_memory(const cuda_context& context, CUresult code, std::size_t size) {
  const error failed = context.failure(
      code, ("allocate " + format_size(size) + " (" + std::to_string(size) + " bytes) on").c_str());
  if (failed.kind() != errc::out_of_memory) return failed;
  std::string message = failed.reason();
  std::size_t left = 0;
  std::size_t total = 0;
  if (context.driver().cuMemGetInfo(&left, &total) == CUDA_SUCCESS) {
    message += ": " + format_size(left) + " of its " + format_size(total) + " are free";
  }
  return error(errc::out_of_memory, message + ". Free some there, or lower --memory-limit");
}

/// Waits until what was freed in the order of `stream` is free: memory that is on its way back is
/// not missing. Not where a graph is being captured from it, which waiting would end.
void wait_for_frees(const cuda_driver& driver, CUstream stream) noexcept {
  CUstreamCaptureStatus capturing = CU_STREAM_CAPTURE_STATUS_NONE;
  if (driver.cuStreamIsCapturing(stream, &capturing) != CUDA_SUCCESS) return;
  if (capturing == CU_STREAM_CAPTURE_STATUS_NONE)
    static_cast<void>(driver.cuStreamSynchronize(stream));
}

result<allocated_batch> allocate_here(const std::shared_ptr<cuda_device>& device,
                                      const std::vector<std::size_t>& sizes, cuda_stream freed_on,
                                      std::size_t idle_limit) {
  cuda_context& context = device->context();
  const auto& driver = context.driver();
  const auto pool = context.pool(idle_limit);
  if (!pool) return failure{pool.error()};
  const context_scope here(context);
  if (here.state() != CUDA_SUCCESS)
    return failure{context.failure(here.state(), "allocate memory on")};

  allocated_batch made;
  made.stream = pool->stream;
  made.ordered = pool->pool != nullptr;
  made.blocks.reserve(sizes.size());
  const std::unique_ptr<batch_owner, drop_owner> owner(
      new batch_owner(device, pool->stream, freed_on));
  bool waited = false;
  for (const std::size_t size : sizes) {
    CUdeviceptr address = 0;
    const auto allocate = [&] {
      return made.ordered ? driver.cuMemAllocFromPoolAsync(&address, size, pool->pool, pool->stream)
                          : driver.cuMemAlloc(&address, size);
    };
    CUresult code = allocate();
    if (code == CUDA_ERROR_OUT_OF_MEMORY && made.ordered && !std::exchange(waited, true)) {
      wait_for_frees(driver, pool->stream);
      wait_for_frees(driver, freed_on);
      code = allocate();
    }
    if (code != CUDA_SUCCESS) return failure{out_of_memory(context, code, size)};
    owner->add();
    auto* const data = reinterpret_cast<std::byte*>(address);  // NOLINT(performance-no-int-to-ptr)
    made.blocks.emplace_back(data, size, &batch_owner::release, owner.get());
  }
  if (made.ordered) {
    const CUresult code = owner->mark();
    if (code != CUDA_SUCCESS) return failure{context.failure(code, "allocate memory on")};
  }
  return made;
}

class cuda_memory final : public allocator {
 public:
  cuda_memory(std::shared_ptr<cuda_device> of, blocking_pool& helpers, cuda_stream freed_on,
              std::size_t idle_limit) noexcept
      : device_(std::move(of)), helpers_(helpers), freed_on_(freed_on), idle_limit_(idle_limit) {}

  task<result<allocated_batch>> allocate(device where, std::vector<std::size_t> sizes) override {
    if (where != cuda(device_->index())) {
      co_return failure{error(errc::invalid_request,
                              "memory of " + where.to_string() +
                                  " was asked for from cuda:" + std::to_string(device_->index()))};
    }
    auto allocating =
        helpers_.run([&device = device_, &sizes, freed_on = freed_on_, idle_limit = idle_limit_] {
          return allocate_here(device, sizes, freed_on, idle_limit);
        });
    auto allocated = co_await allocating;
    co_return std::move(allocated);
  }

 private:
  const std::shared_ptr<cuda_device> device_;
  blocking_pool& helpers_;
  const cuda_stream freed_on_;
  const std::size_t idle_limit_;
};

}  // namespace

std::shared_ptr<allocator> make_cuda_memory(std::shared_ptr<cuda_device> of, blocking_pool& helpers,
                                            cuda_stream freed_on, std::size_t idle_limit) {
  return std::make_shared<cuda_memory>(std::move(of), helpers, freed_on, idle_limit);
}

}  // namespace headrace::detail
