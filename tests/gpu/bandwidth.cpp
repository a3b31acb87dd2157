// What a device is, and how fast pinned memory gets there: by a bare loop of copies, and by
// headrace's copy engine. For tests/gpu/check.
//
//     gpu_bandwidth DEVICE BYTES SLOTS SLOT_SIZE
//
// One line of JSON on stdout. Any error: one line on stderr, exit status 1.
#include <headrace/coro/async_scope.hpp>
#include <headrace/device/copy_engine.hpp>
#include <headrace/device/cuda_device.hpp>
#include <headrace/device/staging_pool.hpp>
#include <headrace/io/io_context.hpp>

#include <cuda.h>
#include <dlfcn.h>
#include <support/test_loop.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace {

using headrace::task;
using clock = std::chrono::steady_clock;

void check(CUresult code, const char* what) {
  if (code != CUDA_SUCCESS)
    throw std::runtime_error(std::string(what) + ": CUDA error " + std::to_string(code));
}

double gbps(std::uint64_t bytes, clock::duration took) {
  return static_cast<double>(bytes) / 1e9 / std::chrono::duration<double>(took).count();
}

/// The driver as anybody would load it, with none of headrace's code in between.
struct bare_driver {
  void* library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);

  template <class Function>
  Function* find(const char* name) const {
    void* const found = library != nullptr ? ::dlsym(library, name) : nullptr;
    if (found == nullptr) throw std::runtime_error(std::string("libcuda.so.1 lacks ") + name);
    return reinterpret_cast<Function*>(found);
  }

#define BARE_TEXT_OF(name) #name
#define BARE_TEXT(name) BARE_TEXT_OF(name)
#define BARE_USE(name) decltype(::name)* name = find<decltype(::name)>(BARE_TEXT(name))
  BARE_USE(cuDriverGetVersion);
  BARE_USE(cuDeviceGetCount);
  BARE_USE(cuDevicePrimaryCtxRetain);
  BARE_USE(cuDevicePrimaryCtxRelease);
  BARE_USE(cuCtxPushCurrent);
  BARE_USE(cuCtxPopCurrent);
  BARE_USE(cuMemGetInfo);
  BARE_USE(cuMemcpyHtoDAsync);
  BARE_USE(cuStreamCreate);
  BARE_USE(cuStreamDestroy);
  BARE_USE(cuStreamSynchronize);
#undef BARE_USE
#undef BARE_TEXT
#undef BARE_TEXT_OF
};

/// The slots, and where they go to.
struct memory {
  std::vector<headrace::staging_slot> slots;
  headrace::allocated_batch target;
};

task<memory> make_memory(headrace::staging_pool* pool, std::shared_ptr<headrace::allocator> from,
                         headrace::device where) {
  memory made;
  for (unsigned number = 0; number < pool->options().slots; ++number) {
    auto slot = co_await pool->acquire();
    made.slots.push_back(std::move(slot).value());
  }
  std::vector<std::size_t> sizes(made.slots.size(), pool->options().slot_size);
  auto target = co_await from->allocate(where, std::move(sizes));
  made.target = std::move(target).value();
  co_return made;
}

/// As few calls as there can be: everything is queued, and then waited for.
double bare(const bare_driver& driver, CUcontext context, const memory& with, std::uint64_t bytes) {
  CUstream stream = nullptr;
  check(driver.cuCtxPushCurrent(context), "cuCtxPushCurrent");
  check(driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  const std::size_t size = with.slots.front().bytes().size();
  const auto copy = [&](std::uint64_t total) {
    std::size_t at = 0;
    for (std::uint64_t done = 0; done < total; done += size, at = (at + 1) % with.slots.size()) {
      check(driver.cuMemcpyHtoDAsync(reinterpret_cast<CUdeviceptr>(with.target.blocks[at].data()),
                                     with.slots[at].bytes().data(), size, stream),
            "cuMemcpyHtoDAsync");
    }
    check(driver.cuStreamSynchronize(stream), "cuStreamSynchronize");
  };
  copy(size * with.slots.size());
  const auto began = clock::now();
  copy(bytes);
  const auto took = clock::now() - began;
  check(driver.cuStreamDestroy(stream), "cuStreamDestroy");
  CUcontext popped = nullptr;
  check(driver.cuCtxPopCurrent(&popped), "cuCtxPopCurrent");
  return gbps(bytes, took);
}

/// What the copiers of one run share. They run on one loop.
struct shared_work {
  headrace::copy_engine* engine;
  const memory* with;
  std::uint64_t left;
};

task<void> copy_slot(shared_work* work, std::size_t number) {
  const auto from = work->with->slots[number].bytes();
  const headrace::copy_piece piece{work->with->target.blocks[number].data(), from.data(),
                                   from.size()};
  while (work->left > 0) {
    work->left -= std::min<std::uint64_t>(work->left, piece.size);
    auto copied = co_await work->engine->copy({&piece, 1});
    std::move(copied).value();
  }
}

task<double> by_engine(headrace::io_context* loop, headrace::copy_engine* engine,
                       const memory* with, std::uint64_t bytes) {
  clock::time_point began;
  // The first round warms up.
  for (const std::uint64_t total :
       {with->slots.size() * with->slots.front().bytes().size(), static_cast<std::size_t>(bytes)}) {
    shared_work work{engine, with, total};
    headrace::async_scope scope;
    began = clock::now();
    for (std::size_t number = 0; number < with->slots.size(); ++number)
      scope.spawn(*loop, copy_slot(&work, number));
    co_await scope.join();
  }
  co_return gbps(bytes, clock::now() - began);
}

int measure(std::uint32_t index, std::uint64_t bytes, unsigned slots, std::size_t slot_size) {
  headrace::test::test_loop here;
  const auto device = headrace::cuda_device::open(index).value();
  const bare_driver driver;
  int version = 0;
  int count = 0;
  std::size_t free = 0;
  std::size_t total = 0;
  CUcontext context = nullptr;
  check(driver.cuDriverGetVersion(&version), "cuDriverGetVersion");
  check(driver.cuDeviceGetCount(&count), "cuDeviceGetCount");
  check(driver.cuDevicePrimaryCtxRetain(&context, static_cast<CUdevice>(index)),
        "cuDevicePrimaryCtxRetain");
  check(driver.cuCtxPushCurrent(context), "cuCtxPushCurrent");
  check(driver.cuMemGetInfo(&free, &total), "cuMemGetInfo");
  CUcontext popped = nullptr;
  check(driver.cuCtxPopCurrent(&popped), "cuCtxPopCurrent");
  {
    headrace::staging_pool staging({.slots = slots, .slot_size = slot_size}, device, here.helpers);
    const auto from = device->memory(here.helpers, nullptr, 0);
    const memory with = here.run(make_memory(&staging, from, headrace::cuda(index)));
    auto engine = headrace::make_cuda_copy_engine(here.loop, device).value();
    if (with.target.ordered) engine->follow(with.target.stream).value();
    const auto limit = std::chrono::seconds(60);
    const double engines = here.run(by_engine(&here.loop, engine.get(), &with, bytes), limit);
    const double bares = bare(driver, context, with, bytes);
    std::printf(
        "{\"name\": \"%s\", \"driver\": %d, \"devices\": %d, \"memory_bytes\": %zu, "
        "\"bare_gbps\": %.3f, \"engine_gbps\": %.3f}\n",
        device->name().c_str(), version, count, total, bares, engines);
  }
  check(driver.cuDevicePrimaryCtxRelease(static_cast<CUdevice>(index)),
        "cuDevicePrimaryCtxRelease");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fputs("usage: gpu_bandwidth DEVICE BYTES SLOTS SLOT_SIZE\n", stderr);
    return 2;
  }
  try {
    return measure(static_cast<std::uint32_t>(std::strtoul(argv[1], nullptr, 10)),
                   std::strtoull(argv[2], nullptr, 10),
                   static_cast<unsigned>(std::strtoul(argv[3], nullptr, 10)),
                   std::strtoull(argv[4], nullptr, 10));
  } catch (const std::exception& failed) {
    std::fprintf(stderr, "%s\n", failed.what());
    return 1;
  }
}
