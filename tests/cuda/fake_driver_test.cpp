#include "fake_cuda.hpp"

#include <cuda.h>
#include <doctest/doctest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

using headrace::test::fake_cuda;

namespace {

/// The driver API as a program loads it.
struct driver_api {
#define FAKE_TEXT_OF(name) #name
#define FAKE_TEXT(name) FAKE_TEXT_OF(name)
#define FAKE_USE(name) decltype(&::name) name = fake_cuda::find<decltype(::name)>(FAKE_TEXT(name))
  FAKE_USE(cuInit);
  FAKE_USE(cuDriverGetVersion);
  FAKE_USE(cuGetErrorName);
  FAKE_USE(cuGetErrorString);
  FAKE_USE(cuDeviceGet);
  FAKE_USE(cuDeviceGetCount);
  FAKE_USE(cuDeviceGetName);
  FAKE_USE(cuDeviceGetAttribute);
  FAKE_USE(cuDevicePrimaryCtxRetain);
  FAKE_USE(cuDevicePrimaryCtxRelease);
  FAKE_USE(cuDevicePrimaryCtxGetState);
  FAKE_USE(cuCtxPushCurrent);
  FAKE_USE(cuCtxPopCurrent);
  FAKE_USE(cuCtxGetCurrent);
  FAKE_USE(cuCtxSetCurrent);
  FAKE_USE(cuCtxSynchronize);
  FAKE_USE(cuThreadExchangeStreamCaptureMode);
  FAKE_USE(cuStreamCreate);
  FAKE_USE(cuStreamDestroy);
  FAKE_USE(cuStreamIsCapturing);
  FAKE_USE(cuStreamQuery);
  FAKE_USE(cuStreamSynchronize);
  FAKE_USE(cuStreamWaitEvent);
  FAKE_USE(cuStreamGetCtx);
  FAKE_USE(cuLaunchHostFunc);
  FAKE_USE(cuEventCreate);
  FAKE_USE(cuEventDestroy);
  FAKE_USE(cuEventRecord);
  FAKE_USE(cuEventQuery);
  FAKE_USE(cuEventSynchronize);
  FAKE_USE(cuMemGetInfo);
  FAKE_USE(cuMemAlloc);
  FAKE_USE(cuMemFree);
  FAKE_USE(cuMemAllocAsync);
  FAKE_USE(cuMemAllocFromPoolAsync);
  FAKE_USE(cuMemFreeAsync);
  FAKE_USE(cuMemPoolCreate);
  FAKE_USE(cuMemPoolDestroy);
  FAKE_USE(cuMemHostAlloc);
  FAKE_USE(cuMemFreeHost);
  FAKE_USE(cuMemHostRegister);
  FAKE_USE(cuMemHostUnregister);
  FAKE_USE(cuMemcpyHtoDAsync);
  FAKE_USE(cuMemcpyDtoHAsync);
  FAKE_USE(cuMemcpyDtoH);
  FAKE_USE(cuPointerGetAttribute);
#undef FAKE_USE
#undef FAKE_TEXT
#undef FAKE_TEXT_OF
};

const driver_api& api() {
  static const driver_api loaded;
  return loaded;
}

#define CUDA_OK(...) REQUIRE(__VA_ARGS__ == CUDA_SUCCESS)

/// The primary context of a device, current on this thread.
class in_context {
 public:
  explicit in_context(int ordinal = 0) : ordinal_(ordinal) {
    CUDA_OK(api().cuInit(0));
    CUcontext context = nullptr;
    CUDA_OK(api().cuDevicePrimaryCtxRetain(&context, ordinal));
    CUDA_OK(api().cuCtxPushCurrent(context));
  }
  in_context(const in_context&) = delete;
  in_context& operator=(const in_context&) = delete;
  ~in_context() {
    CUcontext popped = nullptr;
    CHECK(api().cuCtxPopCurrent(&popped) == CUDA_SUCCESS);
    CHECK(api().cuDevicePrimaryCtxRelease(ordinal_) == CUDA_SUCCESS);
  }

 private:
  int ordinal_;
};

CUstream make_stream(unsigned flags = CU_STREAM_NON_BLOCKING) {
  CUstream made = nullptr;
  CUDA_OK(api().cuStreamCreate(&made, flags));
  return made;
}

CUevent make_event() {
  CUevent made = nullptr;
  CUDA_OK(api().cuEventCreate(&made, CU_EVENT_DISABLE_TIMING));
  return made;
}

CUdeviceptr allocate(std::size_t size) {
  CUdeviceptr made = 0;
  CUDA_OK(api().cuMemAlloc(&made, size));
  return made;
}

/// Pinned memory that counts upwards from `first`.
std::byte* pinned(std::size_t size, unsigned first = 0) {
  void* made = nullptr;
  CUDA_OK(api().cuMemHostAlloc(&made, size, 0));
  auto* const bytes = static_cast<std::byte*>(made);
  for (std::size_t at = 0; at < size; ++at) bytes[at] = static_cast<std::byte>((first + at) % 251);
  return bytes;
}

void count_up(void* data) {
  // Release: what the test reads after it has seen the number.
  static_cast<std::atomic<int>*>(data)->fetch_add(1, std::memory_order_release);
}

constexpr std::size_t some = 100'000;

}  // namespace

TEST_SUITE("unit") {
  TEST_CASE("a copy lands, and comes back") {
    const fake_cuda fake;
    {
      const in_context current;
      const CUstream stream = make_stream();
      const CUdeviceptr to = allocate(some);
      std::byte* const from = pinned(some);
      CUDA_OK(api().cuMemcpyHtoDAsync(to, from, some, stream));
      CUDA_OK(api().cuStreamSynchronize(stream));
      CHECK(std::memcmp(fake.host_address(to), from, some) == 0);
      std::vector<std::byte> back(some - 1);
      CUDA_OK(api().cuMemcpyDtoH(back.data(), to + 1, back.size()));
      CHECK(std::memcmp(back.data(), from + 1, back.size()) == 0);
      CHECK(fake.count("copies") == 2);
      CHECK(fake.count("copied_bytes") == 2 * some - 1);
      CHECK(fake.count("cuMemAlloc_v2") == 1);
      CHECK(fake.count("resident_bytes") >= some);
      CUDA_OK(api().cuMemFreeHost(from));
      CUDA_OK(api().cuMemFree(to));
      CUDA_OK(api().cuStreamDestroy(stream));
    }
    CHECK(fake.violations() == "");
    CHECK(fake.leaks() == "");
  }

  TEST_CASE("an address of a device is none of the host's") {
    const fake_cuda fake;
    const in_context current;
    const CUdeviceptr memory = allocate(some);
    auto* const page = reinterpret_cast<void*>(memory / 4096 * 4096);
    // Asks the kernel: a page that the host may read could be written out.
    std::array<int, 2> ends{};
    REQUIRE(::pipe(ends.data()) == 0);
    CHECK(::write(ends[1], page, 1) == -1);
    CHECK(errno == EFAULT);
    CHECK(::write(ends[1], fake.host_address(memory), 1) == 1);
    ::close(ends[0]);
    ::close(ends[1]);
    CHECK(fake.host_address(memory + some) == nullptr);
    CUDA_OK(api().cuMemFree(memory));
    CHECK(fake.host_address(memory) == nullptr);
  }

  TEST_CASE("host functions run on another thread, in the order of their stream") {
    const fake_cuda fake("delay_us=100");
    const in_context current;
    const CUstream stream = make_stream();
    struct log {
      std::vector<int> seen;
      std::thread::id thread;
    } kept;
    struct entry {
      log* into;
      int number;
    };
    std::vector<entry> entries;
    for (int number = 0; number < 20; ++number) entries.push_back({&kept, number});
    for (entry& one : entries) {
      CUDA_OK(api().cuLaunchHostFunc(
          stream,
          [](void* data) {
            auto* const mine = static_cast<entry*>(data);
            mine->into->seen.push_back(mine->number);
            mine->into->thread = std::this_thread::get_id();
          },
          &one));
    }
    CUDA_OK(api().cuStreamSynchronize(stream));
    std::vector<int> expected(20);
    std::iota(expected.begin(), expected.end(), 0);
    CHECK(kept.seen == expected);
    CHECK(kept.thread != std::this_thread::get_id());
    CUDA_OK(api().cuStreamDestroy(stream));
    CHECK(fake.violations() == "");
  }

  TEST_CASE(
      "nothing is begun while streams are held, and an event is reached by what is before it") {
    const fake_cuda fake;
    const in_context current;
    fake.hold();
    const CUstream stream = make_stream();
    const CUstream signalling = make_stream();
    const CUevent copied = make_event();
    const CUdeviceptr to = allocate(some);
    std::byte* const from = pinned(some);
    std::atomic<int> told{0};
    CHECK(api().cuEventQuery(copied) == CUDA_SUCCESS);
    CUDA_OK(api().cuMemcpyHtoDAsync(to, from, some, stream));
    CUDA_OK(api().cuEventRecord(copied, stream));
    CUDA_OK(api().cuStreamWaitEvent(signalling, copied, 0));
    CUDA_OK(api().cuLaunchHostFunc(signalling, count_up, &told));
    CHECK(api().cuEventQuery(copied) == CUDA_ERROR_NOT_READY);
    CHECK(api().cuStreamQuery(signalling) == CUDA_ERROR_NOT_READY);
    CHECK(told.load() == 0);
    CHECK(fake.count("queued") == 4);
    fake.let_go();
    CUDA_OK(api().cuStreamSynchronize(signalling));
    CHECK(told.load(std::memory_order_acquire) == 1);
    CHECK(api().cuEventQuery(copied) == CUDA_SUCCESS);
    CHECK(std::memcmp(fake.host_address(to), from, some) == 0);
    CUDA_OK(api().cuMemFreeHost(from));
    CUDA_OK(api().cuMemFree(to));
    CUDA_OK(api().cuEventDestroy(copied));
    CUDA_OK(api().cuStreamDestroy(stream));
    CUDA_OK(api().cuStreamDestroy(signalling));
    CHECK(fake.violations() == "");
  }

  TEST_CASE("a stream that is destroyed runs what it holds") {
    const fake_cuda fake("delay_us=200");
    const in_context current;
    std::atomic<int> told{0};
    const CUstream stream = make_stream();
    for (int round = 0; round < 5; ++round)
      CUDA_OK(api().cuLaunchHostFunc(stream, count_up, &told));
    CUDA_OK(api().cuStreamDestroy(stream));
    REQUIRE(fake.settle());
    CHECK(told.load(std::memory_order_acquire) == 5);
    CHECK(api().cuStreamQuery(stream) == CUDA_ERROR_INVALID_HANDLE);
  }

  TEST_CASE("the default stream and blocking ones wait for each other") {
    const fake_cuda fake("delay_us=300");
    const in_context current;
    const CUstream stream = make_stream(CU_STREAM_DEFAULT);
    struct log {
      std::atomic<int> next{0};
      std::array<int, 2> place{};
    } kept;
    for (int round = 0; round < 10; ++round) {
      kept.next = 0;
      const bool default_first = round % 2 == 0;
      const auto tell_default = [&] {
        CUDA_OK(api().cuLaunchHostFunc(
            nullptr,
            [](void* data) { static_cast<log*>(data)->place[0] = static_cast<log*>(data)->next++; },
            &kept));
      };
      if (default_first) tell_default();
      CUDA_OK(api().cuLaunchHostFunc(
          stream,
          [](void* data) { static_cast<log*>(data)->place[1] = static_cast<log*>(data)->next++; },
          &kept));
      if (!default_first) tell_default();
      CUDA_OK(api().cuCtxSynchronize());
      CHECK(kept.place[default_first ? 0 : 1] == 0);
    }
    CUDA_OK(api().cuStreamDestroy(stream));
  }

  TEST_CASE("copies take the time that the bandwidth gives them, together") {
    const fake_cuda fake("copy_gbps=1");
    const in_context current;
    constexpr std::size_t size = 10'000'000;
    const std::array<CUstream, 2> streams{make_stream(), make_stream()};
    const CUdeviceptr to = allocate(2 * size);
    std::byte* const from = pinned(size);
    const auto began = std::chrono::steady_clock::now();
    CUDA_OK(api().cuMemcpyHtoDAsync(to, from, size, streams[0]));
    CUDA_OK(api().cuMemcpyHtoDAsync(to + size, from, size, streams[1]));
    CUDA_OK(api().cuCtxSynchronize());
    // A lower bound alone: how late the machine is says nothing.
    CHECK(std::chrono::steady_clock::now() - began >= std::chrono::milliseconds(19));
    CUDA_OK(api().cuMemFreeHost(from));
    CUDA_OK(api().cuMemFree(to));
    for (const CUstream stream : streams) CUDA_OK(api().cuStreamDestroy(stream));
  }

  TEST_CASE("copies that move nothing still take their place") {
    const fake_cuda fake("move=0");
    const in_context current;
    const CUstream stream = make_stream();
    const CUdeviceptr to = allocate(some);
    std::byte* const from = pinned(some, 1);
    std::memset(fake.host_address(to), 0, some);
    CUDA_OK(api().cuMemcpyHtoDAsync(to, from, some, stream));
    CUDA_OK(api().cuStreamSynchronize(stream));
    CHECK(fake.count("copied_bytes") == some);
    CHECK(fake.host_address(to)[7] == std::byte{0});
    CUDA_OK(api().cuMemFreeHost(from));
    CUDA_OK(api().cuMemFree(to));
    CUDA_OK(api().cuStreamDestroy(stream));
    CHECK(fake.violations() == "");
  }

  TEST_CASE("a source that is overwritten before the copy has ended is seen") {
    const fake_cuda fake;
    const in_context current;
    const CUstream stream = make_stream();
    const CUdeviceptr to = allocate(some);
    std::byte* const from = pinned(some);
    fake.hold();
    CUDA_OK(api().cuMemcpyHtoDAsync(to, from, some, stream));
    from[some - 1] = std::byte{255};
    fake.let_go();
    CUDA_OK(api().cuStreamSynchronize(stream));
    CHECK(fake.violations() ==
          "the source of a copy of 100000 bytes was overwritten before the copy had ended\n");
    CUDA_OK(api().cuMemFreeHost(from));
    CUDA_OK(api().cuMemFree(to));
    CUDA_OK(api().cuStreamDestroy(stream));
  }

  TEST_CASE("a source that is unpinned before the copy has ended is seen, and not read") {
    const fake_cuda fake;
    const in_context current;
    const CUstream stream = make_stream();
    const CUdeviceptr to = allocate(some);
    fake.hold();
    SUBCASE("memory of the driver's own") {
      std::byte* const from = pinned(some);
      CUDA_OK(api().cuMemcpyHtoDAsync(to, from, some, stream));
      CUDA_OK(api().cuMemFreeHost(from));
    }
    SUBCASE("memory that was registered") {
      void* const from =
          ::mmap(nullptr, some, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      CUDA_OK(api().cuMemHostRegister(from, some, 0));
      CUDA_OK(api().cuMemcpyHtoDAsync(to, from, some, stream));
      CUDA_OK(api().cuMemHostUnregister(from));
      ::munmap(from, some);
    }
    fake.let_go();
    CUDA_OK(api().cuStreamSynchronize(stream));
    CHECK(fake.violations().find("was unpinned while 1 copies of it were queued") !=
          std::string::npos);
    CHECK(fake.count("violations") == 1);
    CUDA_OK(api().cuMemFree(to));
    CUDA_OK(api().cuStreamDestroy(stream));
  }

  TEST_CASE("a copy from memory that is not pinned is a failure") {
    const fake_cuda fake;
    const in_context current;
    const CUstream stream = make_stream();
    const CUdeviceptr to = allocate(some);
    const std::vector<std::byte> from(some);
    CHECK(api().cuMemcpyHtoDAsync(to, from.data(), some, stream) == CUDA_ERROR_INVALID_VALUE);
    CHECK(fake.violations() == "a copy of 100000 bytes from memory that is not pinned\n");
    CUDA_OK(api().cuMemFree(to));
    CUDA_OK(api().cuStreamDestroy(stream));
  }

  TEST_CASE("a copy past the end of an allocation is a failure") {
    const fake_cuda fake;
    const in_context current;
    const CUdeviceptr to = allocate(some);
    std::byte* const from = pinned(some + 1);
    CHECK(api().cuMemcpyHtoDAsync(to, from, some + 1, nullptr) == CUDA_ERROR_INVALID_VALUE);
    CHECK(api().cuMemcpyHtoDAsync(to + some, from, 1, nullptr) == CUDA_ERROR_INVALID_VALUE);
    CHECK(fake.count("violations") == 2);
    CUDA_OK(api().cuMemFreeHost(from));
    CUDA_OK(api().cuMemFree(to));
  }

  TEST_CASE("a call within a host function is a failure") {
    const fake_cuda fake;
    const in_context current;
    CUDA_OK(api().cuLaunchHostFunc(
        nullptr, [](void* event) { api().cuEventQuery(static_cast<CUevent>(event)); }, nullptr));
    CUDA_OK(api().cuCtxSynchronize());
    CHECK(fake.violations() == "cuEventQuery was called within a host function\n");
  }

  TEST_CASE("a call without a current context is a failure") {
    const fake_cuda fake;
    CUDA_OK(api().cuInit(0));
    CUdeviceptr none = 0;
    CHECK(api().cuMemAlloc(&none, 1) == CUDA_ERROR_INVALID_CONTEXT);
    CHECK(fake.violations() == "cuMemAlloc_v2 was called without a current context\n");
    CUcontext current = nullptr;
    CHECK(api().cuCtxGetCurrent(&current) == CUDA_SUCCESS);
    CHECK(current == nullptr);
  }

  TEST_CASE("a thread that leaves a context behind is a failure, one that set it is not") {
    const fake_cuda fake;
    const in_context current;
    CUcontext context = nullptr;
    CUDA_OK(api().cuCtxGetCurrent(&context));
    const auto result = [context](bool push) {
      CUresult code{};
      std::thread([&] {
        code = push ? api().cuCtxPushCurrent(context) : api().cuCtxSetCurrent(context);
      }).join();
      return code;
    };
    CUDA_OK(result(false));
    CHECK(fake.violations() == "");
    CUDA_OK(result(true));
    CHECK(fake.violations() ==
          "a thread ended with 1 contexts that it had pushed and not popped\n");
  }

  TEST_CASE("an unsafe call breaks a capture elsewhere, but in relaxed mode") {
    const fake_cuda fake;
    const in_context current;
    const CUstream captured = make_stream();
    const CUevent event = make_event();
    fake.capture(captured, true);
    CUstreamCaptureStatus status{};
    CUDA_OK(api().cuStreamIsCapturing(captured, &status));
    CHECK(status == CU_STREAM_CAPTURE_STATUS_ACTIVE);
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    CUDA_OK(api().cuThreadExchangeStreamCaptureMode(&mode));
    CHECK(mode == CU_STREAM_CAPTURE_MODE_GLOBAL);
    CHECK(api().cuEventQuery(event) == CUDA_SUCCESS);
    CUDA_OK(api().cuThreadExchangeStreamCaptureMode(&mode));
    CHECK(fake.violations() == "");
    CHECK(api().cuEventQuery(event) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    CHECK(fake.count("violations") == 1);
    fake.capture(captured, false);
    CUDA_OK(api().cuEventDestroy(event));
    CUDA_OK(api().cuStreamDestroy(captured));
  }

  TEST_CASE("what a context leaves behind is a failure") {
    const fake_cuda fake;
    {
      const in_context current;
      make_stream();
      make_event();
      allocate(some);
      pinned(some);
      const std::string leaks = fake.leaks();
      for (const char* const line :
           {"streams 1\n", "events 1\n", "allocations 1\n", "pinned_ranges 1\n", "references 1\n"})
        CHECK(leaks.find(line) != std::string::npos);
    }
    CHECK(fake.count("violations") == 4);
    CHECK(fake.leaks() == "");
  }

  TEST_CASE("what is given back twice is a failure") {
    const fake_cuda fake;
    {
      const in_context current;
      const CUdeviceptr memory = allocate(some);
      CUDA_OK(api().cuMemFree(memory));
      CHECK(api().cuMemFree(memory) == CUDA_ERROR_INVALID_VALUE);
      const CUstream stream = make_stream();
      CUDA_OK(api().cuStreamDestroy(stream));
      CHECK(api().cuStreamDestroy(stream) == CUDA_ERROR_INVALID_HANDLE);
      const CUevent event = make_event();
      CUDA_OK(api().cuEventDestroy(event));
      CHECK(api().cuEventDestroy(event) == CUDA_ERROR_INVALID_HANDLE);
      std::byte* const host = pinned(some);
      CUDA_OK(api().cuMemFreeHost(host));
      CHECK(api().cuMemFreeHost(host) == CUDA_ERROR_INVALID_VALUE);
    }
    CHECK(api().cuDevicePrimaryCtxRelease(0) == CUDA_ERROR_INVALID_CONTEXT);
    CHECK(api().cuCtxPopCurrent(nullptr) == CUDA_ERROR_INVALID_CONTEXT);
    CHECK(fake.count("violations") == 6);
  }

  TEST_CASE("memory in the order of a stream is there when the stream is") {
    const fake_cuda fake;
    const in_context current;
    const CUstream first = make_stream();
    const CUstream second = make_stream();
    std::byte* const from = pinned(some);
    CUdeviceptr memory = 0;

    SUBCASE("used in its order") {
      fake.hold();
      CUDA_OK(api().cuMemAllocAsync(&memory, some, first));
      CUDA_OK(api().cuMemcpyHtoDAsync(memory, from, some, first));
      CUDA_OK(api().cuMemFreeAsync(memory, first));
      CHECK(fake.count("device_bytes") > 0);
      fake.let_go();
      REQUIRE(fake.settle());
      CHECK(fake.violations() == "");
    }
    SUBCASE("used before") {
      fake.hold(first);
      CUDA_OK(api().cuMemAllocAsync(&memory, some, first));
      CUDA_OK(api().cuMemcpyHtoDAsync(memory, from, some, second));
      CUDA_OK(api().cuStreamSynchronize(second));
      CHECK(fake.violations() ==
            "device memory was used before its stream had reached its allocation\n");
      fake.let_go(first);
      CUDA_OK(api().cuMemFreeAsync(memory, first));
    }
    SUBCASE("freed before") {
      CUDA_OK(api().cuMemAllocAsync(&memory, some, first));
      CUDA_OK(api().cuStreamSynchronize(first));
      fake.hold(second);
      CUDA_OK(api().cuMemcpyHtoDAsync(memory, from, some, second));
      CUDA_OK(api().cuMemFreeAsync(memory, first));
      CUDA_OK(api().cuStreamSynchronize(first));
      CHECK(fake.violations() == "");
      // Whatever has the address now is not what the copy was for.
      CUdeviceptr other = 0;
      CUDA_OK(api().cuMemAllocAsync(&other, some, first));
      CHECK(other == memory);
      CUDA_OK(api().cuStreamSynchronize(first));
      fake.let_go(second);
      CUDA_OK(api().cuStreamSynchronize(second));
      CHECK(fake.violations() ==
            "device memory was freed before a copy of 100000 bytes had ended\n");
      CUDA_OK(api().cuMemFreeAsync(other, first));
    }
    SUBCASE("used after its free was queued") {
      CUDA_OK(api().cuMemAllocAsync(&memory, some, first));
      CUDA_OK(api().cuMemFreeAsync(memory, first));
      CHECK(api().cuMemcpyHtoDAsync(memory, from, some, first) == CUDA_ERROR_INVALID_VALUE);
      CHECK(fake.count("violations") == 1);
    }
    CUDA_OK(api().cuMemFreeHost(from));
    CUDA_OK(api().cuStreamDestroy(first));
    CUDA_OK(api().cuStreamDestroy(second));
  }

  TEST_CASE("a call that is planned to fail does, once or from then on") {
    const fake_cuda fake("fail=cuMemAlloc:2=2,cuStreamQuery:1+=801");
    const in_context current;
    const CUdeviceptr first = allocate(some);
    CUdeviceptr none = 0;
    CHECK(api().cuMemAlloc(&none, some) == CUDA_ERROR_OUT_OF_MEMORY);
    const CUdeviceptr third = allocate(some);
    for (int round = 0; round < 3; ++round)
      CHECK(api().cuStreamQuery(nullptr) == CUDA_ERROR_NOT_SUPPORTED);
    CUDA_OK(api().cuMemFree(first));
    CUDA_OK(api().cuMemFree(third));
  }

  TEST_CASE("a lost device answers everything with its error and calls no host function") {
    const fake_cuda fake;
    {
      const in_context current;
      const CUstream stream = make_stream();
      const CUevent event = make_event();
      const CUdeviceptr to = allocate(some);
      std::byte* const from = pinned(some);
      std::atomic<int> told{0};

      SUBCASE("while a copy runs") {
        fake.configure("fail_copy=2=700");
        fake.hold();
        for (int round = 0; round < 3; ++round)
          CUDA_OK(api().cuMemcpyHtoDAsync(to, from, some, stream));
        CUDA_OK(api().cuEventRecord(event, stream));
        CUDA_OK(api().cuLaunchHostFunc(stream, count_up, &told));
        fake.let_go();
        CHECK(api().cuStreamSynchronize(stream) == CUDA_ERROR_ILLEGAL_ADDRESS);
        REQUIRE(fake.settle());
        CHECK(fake.count("copies") == 1);
      }
      SUBCASE("by a call") {
        fake.hold();
        CUDA_OK(api().cuEventRecord(event, stream));
        CUDA_OK(api().cuLaunchHostFunc(stream, count_up, &told));
        fake.configure("fail=cuMemGetInfo=700");
        std::size_t free = 0;
        std::size_t total = 0;
        CHECK(api().cuMemGetInfo(&free, &total) == CUDA_ERROR_ILLEGAL_ADDRESS);
        REQUIRE(fake.settle());
      }
      SUBCASE("at any time") {
        fake.hold();
        CUDA_OK(api().cuEventRecord(event, stream));
        CUDA_OK(api().cuLaunchHostFunc(stream, count_up, &told));
        std::thread waiting([stream] {
          CUcontext context = nullptr;
          CHECK(api().cuStreamGetCtx(stream, &context) == CUDA_SUCCESS);
          CHECK(api().cuCtxPushCurrent(context) == CUDA_SUCCESS);
          CHECK(api().cuStreamSynchronize(stream) == CUDA_ERROR_ILLEGAL_ADDRESS);
          CHECK(api().cuCtxPopCurrent(&context) == CUDA_SUCCESS);
        });
        while (fake.count("cuStreamSynchronize") == 0) std::this_thread::yield();
        fake.lose(0, CUDA_ERROR_ILLEGAL_ADDRESS);
        waiting.join();
        REQUIRE(fake.settle());
      }
      CHECK(api().cuEventQuery(event) == CUDA_ERROR_ILLEGAL_ADDRESS);
      CHECK(api().cuStreamQuery(stream) == CUDA_ERROR_ILLEGAL_ADDRESS);
      CHECK(api().cuEventSynchronize(event) == CUDA_ERROR_ILLEGAL_ADDRESS);
      CHECK(api().cuMemcpyHtoDAsync(to, from, some, stream) == CUDA_ERROR_ILLEGAL_ADDRESS);
      CHECK(told.load() == 0);
      // Says so, but does it.
      CHECK(api().cuMemFreeHost(from) == CUDA_ERROR_ILLEGAL_ADDRESS);
      CHECK(api().cuMemFree(to) == CUDA_ERROR_ILLEGAL_ADDRESS);
      CHECK(api().cuEventDestroy(event) == CUDA_ERROR_ILLEGAL_ADDRESS);
      CHECK(api().cuStreamDestroy(stream) == CUDA_ERROR_ILLEGAL_ADDRESS);
    }
    CHECK(fake.violations() == "");
    CHECK(fake.leaks() == "");
    CUcontext context = nullptr;
    CHECK(api().cuDevicePrimaryCtxRetain(&context, 0) == CUDA_ERROR_ILLEGAL_ADDRESS);
  }

  TEST_CASE("the other device goes on when one is lost") {
    const fake_cuda fake("devices=2");
    const in_context first(0);
    const in_context second(1);
    fake.lose(0, CUDA_ERROR_LAUNCH_FAILED);
    const CUdeviceptr memory = allocate(some);
    int ordinal = -1;
    CUDA_OK(api().cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, memory));
    CHECK(ordinal == 1);
    CUDA_OK(api().cuMemFree(memory));
    CUDA_OK(api().cuCtxSynchronize());
  }

  TEST_CASE("memory is limited, on the device and pinned") {
    const fake_cuda fake("memory=1M pinned=64K");
    const in_context current;
    CUdeviceptr none = 0;
    CHECK(api().cuMemAlloc(&none, (1 << 20) + 1) == CUDA_ERROR_OUT_OF_MEMORY);
    const CUdeviceptr half = allocate(1 << 19);
    CHECK(api().cuMemAlloc(&none, (1 << 19) + 1) == CUDA_ERROR_OUT_OF_MEMORY);
    const CUdeviceptr rest = allocate(1 << 19);
    std::size_t free = 1;
    std::size_t total = 1;
    CUDA_OK(api().cuMemGetInfo(&free, &total));
    CHECK(free == 0);
    CHECK(total == 1 << 20);
    CUDA_OK(api().cuMemFree(half));
    CUDA_OK(api().cuMemFree(rest));
    std::byte* const host = pinned(64 << 10);
    void* refused = nullptr;
    CHECK(api().cuMemHostAlloc(&refused, 1, 0) == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(api().cuMemHostRegister(host + 4096, 4096, 0) != CUDA_SUCCESS);
    CUDA_OK(api().cuMemFreeHost(host));
    std::vector<std::byte> own(8192);
    CUDA_OK(api().cuMemHostRegister(own.data(), own.size(), 0));
    CHECK(api().cuMemHostRegister(own.data() + 1, 1, 0) ==
          CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    CUDA_OK(api().cuMemHostUnregister(own.data()));
    CHECK(fake.count("peak_pinned_bytes") == 64 << 10);
    CHECK(fake.count("peak_device_bytes") == 1 << 20);
    CHECK(fake.violations() == "");
  }

  TEST_CASE("memory that is freed is used again, however it was cut") {
    const fake_cuda fake("memory=1M");
    const in_context current;
    std::vector<CUdeviceptr> held;
    for (int round = 0; round < 3; ++round) {
      for (int number = 0; number < 16; ++number) held.push_back(allocate(64 << 10));
      for (std::size_t at = 0; at < held.size(); at += 2) CUDA_OK(api().cuMemFree(held[at]));
      for (std::size_t at = 1; at < held.size(); at += 2) CUDA_OK(api().cuMemFree(held[at]));
      held.clear();
      CUDA_OK(api().cuMemFree(allocate(1 << 20)));
    }
  }

  TEST_CASE("a driver without pools, without devices") {
    const fake_cuda fake("pools=0");
    {
      const in_context current;
      int supported = 1;
      CUDA_OK(
          api().cuDeviceGetAttribute(&supported, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 0));
      CHECK(supported == 0);
      CUdeviceptr none = 0;
      CHECK(api().cuMemAllocAsync(&none, some, nullptr) == CUDA_ERROR_NOT_SUPPORTED);
    }
    fake.configure("devices=0");
    CHECK(api().cuInit(0) == CUDA_ERROR_NO_DEVICE);
    fake.configure("devices=1");
    CUdevice device = 0;
    CHECK(api().cuDeviceGet(&device, 1) == CUDA_ERROR_INVALID_DEVICE);
  }

  TEST_CASE("memory comes from a pool, and a pool that is left behind is a leak") {
    const fake_cuda fake;
    const in_context current;
    CUmemPoolProps wanted{};
    wanted.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    wanted.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    CUmemoryPool pool = nullptr;
    CUDA_OK(api().cuMemPoolCreate(&pool, &wanted));
    CUdeviceptr memory = 0;
    CUDA_OK(api().cuMemAllocFromPoolAsync(&memory, some, pool, nullptr));
    CUDA_OK(api().cuMemFreeAsync(memory, nullptr));
    CHECK(fake.leaks().find("pools 1\n") != std::string::npos);
    CUDA_OK(api().cuMemPoolDestroy(pool));
    CUDA_OK(api().cuCtxSynchronize());
    CHECK(fake.violations() == "");
  }

  TEST_CASE("entry points are as old as the driver") {
    const fake_cuda fake;
    int version = 0;
    CUDA_OK(api().cuDriverGetVersion(&version));
    using look_up = CUresult(const char*, void**, int, cuuint64_t, CUdriverProcAddressQueryResult*);
    auto* const find = fake_cuda::find<look_up>("cuGetProcAddress_v2");
    auto* const find_old = fake_cuda::find<void>("cuGetProcAddress");
    if (version < 11030) {
      CHECK((find == nullptr));
      CHECK_FALSE(find_old);
      return;
    }
    REQUIRE((find != nullptr));
    CHECK(find_old);
    void* found = nullptr;
    CUdriverProcAddressQueryResult status{};
    CUDA_OK(find("cuMemAlloc", &found, 12000, 0, &status));
    CHECK(found == reinterpret_cast<void*>(api().cuMemAlloc));
    CHECK(find("cuMemAllocAsync", &found, 11010, 0, &status) == CUDA_ERROR_NOT_FOUND);
    CHECK(status == CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
    CHECK(find("cuNothing", &found, 12000, 0, &status) == CUDA_ERROR_NOT_FOUND);
    CHECK(status == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    fake.configure("driver=11010");
    CHECK(find("cuMemAllocAsync", &found, 12000, 0, &status) == CUDA_ERROR_NOT_FOUND);
  }

  TEST_CASE("errors have their names") {
    const fake_cuda fake;
    const char* text = nullptr;
    CUDA_OK(api().cuGetErrorName(CUDA_ERROR_OUT_OF_MEMORY, &text));
    CHECK(std::string(text) == "CUDA_ERROR_OUT_OF_MEMORY");
    CUDA_OK(api().cuGetErrorString(CUDA_ERROR_OUT_OF_MEMORY, &text));
    CHECK(std::string(text) == "out of memory");
    CHECK(api().cuGetErrorName(static_cast<CUresult>(1001), &text) == CUDA_ERROR_INVALID_VALUE);
  }

  TEST_CASE("nothing works in a forked child") {
    const fake_cuda fake;
    const in_context current;
    const pid_t child = ::fork();
    if (child == 0) {
      int count = 0;
      ::_exit(api().cuDeviceGetCount(&count) == CUDA_ERROR_NOT_INITIALIZED ? 0 : 1);
    }
    int status = -1;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK(WEXITSTATUS(status) == 0);
  }

  TEST_CASE("threads that all use the driver at once get what they asked for") {
    const fake_cuda fake("delay_us=20");
    {
      const in_context current;
      CUcontext context = nullptr;
      CUDA_OK(api().cuCtxGetCurrent(&context));
      std::vector<std::thread> threads;
      for (unsigned number = 0; number < 4; ++number) {
        threads.emplace_back([&fake, context, number] {
          CUcontext popped = nullptr;
          CHECK(api().cuCtxPushCurrent(context) == CUDA_SUCCESS);
          const CUstream copying = make_stream();
          const CUstream signalling = make_stream();
          const CUevent copied = make_event();
          std::byte* const from = pinned(some, number);
          for (int round = 0; round < 20; ++round) {
            CUdeviceptr to = 0;
            std::atomic<int> told{0};
            CHECK(api().cuMemAllocAsync(&to, some, copying) == CUDA_SUCCESS);
            CHECK(api().cuMemcpyHtoDAsync(to, from, some, copying) == CUDA_SUCCESS);
            CHECK(api().cuEventRecord(copied, copying) == CUDA_SUCCESS);
            CHECK(api().cuStreamWaitEvent(signalling, copied, 0) == CUDA_SUCCESS);
            CHECK(api().cuLaunchHostFunc(signalling, count_up, &told) == CUDA_SUCCESS);
            // Acquire: what was copied before the host function ran.
            while (told.load(std::memory_order_acquire) == 0) std::this_thread::yield();
            CHECK(std::memcmp(fake.host_address(to), from, some) == 0);
            CHECK(api().cuMemFreeAsync(to, copying) == CUDA_SUCCESS);
          }
          CHECK(api().cuMemFreeHost(from) == CUDA_SUCCESS);
          CHECK(api().cuEventDestroy(copied) == CUDA_SUCCESS);
          CHECK(api().cuStreamDestroy(signalling) == CUDA_SUCCESS);
          CHECK(api().cuStreamDestroy(copying) == CUDA_SUCCESS);
          CHECK(api().cuCtxPopCurrent(&popped) == CUDA_SUCCESS);
        });
      }
      for (std::thread& one : threads) one.join();
      REQUIRE(fake.settle());
    }
    CHECK(fake.violations() == "");
    CHECK(fake.leaks() == "");
    CHECK(fake.count("host_functions") == 80);
  }

  TEST_CASE("the report says what was done, in JSON") {
    const fake_cuda fake;
    CUDA_OK(api().cuInit(0));
    CUdeviceptr none = 0;
    CHECK(api().cuMemAlloc(&none, 1) == CUDA_ERROR_INVALID_CONTEXT);
    const std::string report = fake.report();
    CHECK(report.find("\"copies\": 0,") != std::string::npos);
    CHECK(report.find("\"cuInit\": 1") != std::string::npos);
    CHECK(report.find("\"violations\": [\"cuMemAlloc_v2 was called without a current context\"]") !=
          std::string::npos);
    CHECK(report.find("\"leaks\": {}") != std::string::npos);
  }

  TEST_CASE("a setting that is not understood is said to be") {
    const fake_cuda fake;
    auto* const configure = fake_cuda::find<decltype(fake_cuda_configure)>("fake_cuda_configure");
    CHECK(configure("seed=2 delay_us=5") == 0);
    CHECK(configure("seed=2 nothing=5") == 2);
    for (const char* const wrong : {"seed", "seed=", "seed=x", "memory=1T", "pools=2", "fail=x",
                                    "fail=x:0=1", "fail=x:1=0", "fail_copy=1", "copy_gbps=fast"}) {
      CAPTURE(wrong);
      CHECK(configure(wrong) == 1);
    }
  }
}
