#pragma once

#include "fake_settings.hpp"

#include <cuda.h>
#include <pthread.h>
#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fake_cuda {

using steady = std::chrono::steady_clock;

struct device;
struct context;
struct stream;

/// A place in a stream that has been recorded; an event points to its latest.
struct record {
  bool reached = false;
  steady::time_point at;
  std::shared_ptr<context> of;
};

struct event {
  std::shared_ptr<context> of;
  unsigned flags = 0;
  std::shared_ptr<record> latest;
};

/// A run of device memory. Its number tells it from whatever had the same address before.
struct allocation {
  std::uint64_t number = 0;
  std::size_t offset = 0;
  std::size_t size = 0;
  std::size_t taken = 0;  ///< With what rounding costs.
  bool ready = true;      ///< Its stream has reached it.
  bool going = false;     ///< Its free has been queued.
  bool ordered = false;   ///< From a pool.
  std::shared_ptr<context> of;
};

/// Host memory that a device may read by itself.
struct pinned_range {
  std::uint64_t number = 0;
  std::uintptr_t begin = 0;
  std::size_t size = 0;
  bool own = false;      ///< The fake has mapped it (cuMemHostAlloc).
  unsigned queued = 0;   ///< Copies that are to read or write it.
  unsigned running = 0;  ///< Those that do at this moment.
  std::shared_ptr<context> of;
};

struct memory_pool {
  device* of = nullptr;
  std::uint64_t release_threshold = 0;
  std::size_t used = 0;
  std::size_t peak = 0;
};

enum class action : std::uint8_t { copy, fill, record, wait, wait_for_stream, host, ready, free };
enum class direction : std::uint8_t { to_device, to_host, within };

struct operation {
  action what = action::copy;
  // copy, fill
  direction towards = direction::to_device;
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  std::size_t size = 0;
  unsigned char filling = 0;
  std::uint64_t to_number = 0;    ///< Of the allocation.
  std::uint64_t from_number = 0;  ///< Of the allocation.
  std::uint64_t pinned = 0;       ///< Of the pinned range; 0: none.
  std::uint64_t checksum = 0;
  bool checked = false;
  // record, wait
  std::shared_ptr<record> mark;
  // wait_for_stream
  std::shared_ptr<stream> other;
  std::uint64_t until = 0;
  // host
  CUhostFn call = nullptr;
  CUstreamCallback callback = nullptr;
  void* data = nullptr;
  // ready, free
  std::uint64_t number = 0;
};

struct stream {
  std::shared_ptr<context> of;
  unsigned flags = 0;
  int priority = 0;
  std::deque<operation> queue;
  std::uint64_t queued = 0;
  std::uint64_t finished = 0;
  bool closed = false;
  bool held = false;
  bool capturing = false;
  pthread_t thread{};
  bool running = false;
  bool moving = false;           ///< Bytes, at this moment and without the mutex.
  std::int64_t foreign_cpu = 0;  ///< Nanoseconds in host functions.
  std::condition_variable work;
  std::mt19937_64 random;

  [[nodiscard]] bool blocking() const noexcept { return (flags & CU_STREAM_NON_BLOCKING) == 0; }
};

/// The primary context of a device, from its first retain to its last release.
struct context {
  device* of = nullptr;
  bool gone = false;
  std::shared_ptr<stream> legacy;
  std::map<pthread_t, std::shared_ptr<stream>> of_threads;
};

struct device {
  int ordinal = 0;
  std::byte* reserved = nullptr;  ///< The addresses that are handed out.
  std::byte* backing = nullptr;   ///< Where the bytes are.
  std::size_t size = 0;
  std::size_t used = 0;
  std::map<std::size_t, std::size_t> holes;  ///< Offset and size.
  std::map<std::size_t, allocation> allocations;
  std::shared_ptr<context> primary;
  unsigned references = 0;
  unsigned flags = 0;
  CUresult lost = CUDA_SUCCESS;
  memory_pool default_pool;
  CUmemoryPool current_pool = nullptr;
  steady::time_point busy[3];  ///< Until when, in each direction.
};

/// Whatever a real driver would do: one for the process, never destroyed. Everything in it is
/// behind its mutex, bytes that are copied excepted.
class machine {
 public:
  static machine& instance();

  std::mutex mutex;
  std::condition_variable changed;  ///< Something has ended, or was lost.
  settings now;
  bool initialised = false;
  bool held = false;
  bool capturing = false;

  std::map<std::string_view, std::uint64_t> calls;
  std::map<std::string, std::uint64_t, std::less<>> counters;
  std::vector<std::string> violations;

  std::map<int, std::unique_ptr<device>> devices;
  std::map<std::uintptr_t, pinned_range> pinned;
  std::map<CUstream, std::shared_ptr<stream>> streams;
  std::map<CUevent, std::unique_ptr<event>> events;
  std::map<CUmemoryPool, std::unique_ptr<memory_pool>> pools;
  std::vector<std::shared_ptr<stream>> threads;  ///< Those that have one.

  void initialise() noexcept;

  /// Whether this is a child of the process that the driver was initialised in.
  [[nodiscard]] bool forked() const noexcept;

  void violation(std::string text);

  /// The code that this call is to fail with, if it is.
  [[nodiscard]] CUresult planned(std::string_view function, std::uint64_t nth);

  device& at(int ordinal);
  void lose(device& which, CUresult code);

  // Device memory.
  CUresult allocate(device& which, std::size_t size, const std::shared_ptr<context>& by,
                    CUdeviceptr& out, std::uint64_t& number);
  void release(device& which, std::size_t offset);
  /// The allocation that holds all of [address, address + size); null where none does.
  allocation* find(CUdeviceptr address, std::size_t size, device** which = nullptr);
  allocation* find(std::uint64_t number, device** which = nullptr);
  std::byte* host_address(CUdeviceptr address);

  // Host memory.
  pinned_range* find_pinned(const void* begin, std::size_t size);
  CUresult pin(void* begin, std::size_t size, bool own, const std::shared_ptr<context>& by);
  CUresult unpin(std::unique_lock<std::mutex>& lock, void* begin, bool own);

  // Streams.
  std::shared_ptr<stream> make_stream(std::shared_ptr<context> of, unsigned flags, int priority);
  /// The one behind a handle, the default ones included; null where there is none.
  std::shared_ptr<stream> find_stream(CUstream handle, const std::shared_ptr<context>& current);
  void push(const std::shared_ptr<stream>& into, operation what);
  void close(const std::shared_ptr<stream>& which);
  CUresult wait(std::unique_lock<std::mutex>& lock, const std::shared_ptr<stream>& which);
  CUresult wait(std::unique_lock<std::mutex>& lock, const std::shared_ptr<context>& all_of);

  void release_context(std::unique_lock<std::mutex>& lock, device& which);

  void let_go(stream* one);  ///< Null: all of them.
  void start_over();

  [[nodiscard]] std::uint64_t count(std::string_view name);
  [[nodiscard]] std::vector<std::pair<std::string, std::uint64_t>> leaks();
  [[nodiscard]] std::string report();

 private:
  machine();
  static void* run(void* argument);
  void work(const std::shared_ptr<stream>& mine);
  void execute(std::unique_lock<std::mutex>& lock, stream& mine, operation& what);
  void copy(std::unique_lock<std::mutex>& lock, stream& mine, operation& what);
  [[nodiscard]] std::size_t resident() const;
  [[nodiscard]] std::int64_t own_cpu() const;

  std::atomic<pid_t> owner_{0};
  std::map<std::uint64_t, std::pair<device*, std::size_t>> places_;  ///< Of allocations.
  std::uint64_t next_number_ = 1;
  std::uint64_t next_stream_ = 1;
  std::uint64_t copies_begun_ = 0;
  std::size_t pinned_bytes_ = 0;
  std::int64_t cpu_of_the_ended_ = 0;
};

/// What belongs to a thread.
struct thread_state {
  std::vector<std::shared_ptr<context>> current;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  bool in_host_function = false;
  bool set_current = false;  ///< By cuCtxSetCurrent: such a context may stay for ever.

  thread_state() = default;
  thread_state(const thread_state&) = delete;
  thread_state& operator=(const thread_state&) = delete;
  ~thread_state();

  static thread_state& here();
};

std::uint64_t checksum_of(const std::byte* bytes, std::size_t size) noexcept;

/// Whether a real context is dead after this.
bool loses_context(CUresult code) noexcept;

}  // namespace fake_cuda
