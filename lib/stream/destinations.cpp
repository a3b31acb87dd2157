#include "stream/destinations.hpp"

#include <headrace/coro/with.hpp>
#include <headrace/device/cuda_device.hpp>
#include <headrace/io/blocking_pool.hpp>

#include <new>
#include <string>
#include <utility>

namespace headrace::detail {
namespace {

task<result<copy_engine*>> engine_here(loop_services* loop, std::shared_ptr<cuda_device> target) {
  co_return loop->engine(std::move(target));
}

}  // namespace

task<result<std::unique_ptr<destinations>>> destinations::open(
    std::shared_ptr<runtime_state> runtime, stream_options options, loop_services* loop) {
  std::unique_ptr<destinations> made(new destinations);
  made->device_ = options.device;
  made->memory_ = std::move(options.destination);
  if (options.device.kind == device::type::cpu) co_return std::move(made);

  // Loading and initialising a driver takes up to seconds.
  blocking_pool& helpers = *loop->context().helpers();
  auto opening =
      helpers.run([runtime, index = options.device.index] { return runtime->open_device(index); });
  auto opened = co_await opening;
  if (!opened) co_return failure{opened.error()};
  made->services_ = std::move(*opened);
  const auto& target = made->services_->target;
  if (options.consumer_stream != nullptr) {
    const auto valid = target->check(options.consumer_stream);
    if (!valid) co_return failure{valid.error()};
  }
  if (made->memory_ == nullptr)
    made->memory_ = target->memory(helpers, options.consumer_stream, runtime->idle_memory());
  for (unsigned number = 0; number < runtime->threads(); ++number) {
    loop_services& other = runtime->loop(number);
    auto engine = co_await on(other.context(), engine_here(&other, target));
    if (!engine) co_return failure{engine.error()};
    made->engines_.push_back(*engine);
  }
  co_return std::move(made);
}

task<result<std::vector<device_block>>> destinations::allocate(std::vector<std::size_t> sizes) {
  const std::size_t wanted = sizes.size();
  auto given = co_await memory_->allocate(device_, std::move(sizes));
  if (!given) co_return failure{given.error()};
  if (given->blocks.size() != wanted) {
    co_return failure{error(errc::internal, "the allocator gave " +
                                                std::to_string(given->blocks.size()) +
                                                " blocks instead of " + std::to_string(wanted))};
  }
  if (given->ordered) {
    for (copy_engine* const engine : engines_) {
      const auto followed = engine->follow(given->stream);
      if (!followed) co_return failure{followed.error()};
    }
  }
  co_return std::move(given->blocks);
}

}  // namespace headrace::detail
