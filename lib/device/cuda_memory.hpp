#pragma once

#include <headrace/device/allocator.hpp>
#include <headrace/device/cuda_device.hpp>

#include <cstddef>
#include <memory>

namespace headrace::detail {

/// See `cuda_device::memory`.
[[nodiscard]] std::shared_ptr<allocator> make_cuda_memory(std::shared_ptr<cuda_device> of,
                                                          blocking_pool& helpers,
                                                          cuda_stream freed_on,
                                                          std::size_t idle_limit);

}  // namespace headrace::detail
