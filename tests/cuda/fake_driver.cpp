#include "fake_driver.hpp"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

namespace fake_cuda {
namespace {

constexpr std::size_t granularity = 512;
constexpr std::size_t most_violations = 200;

std::size_t rounded(std::size_t size, std::size_t to) noexcept { return (size + to - 1) / to * to; }

std::int64_t nanoseconds(clockid_t clock) noexcept {
  timespec at{};
  if (::clock_gettime(clock, &at) != 0) return 0;
  return std::int64_t{at.tv_sec} * 1'000'000'000 + at.tv_nsec;
}

/// Sleeps, never spins: the fake's waiting must not take a processor from what is tested.
void sleep_until(steady::time_point when) noexcept {
  const auto since = std::chrono::duration_cast<std::chrono::nanoseconds>(when.time_since_epoch());
  const timespec at{static_cast<time_t>(since.count() / 1'000'000'000),
                    static_cast<long>(since.count() % 1'000'000'000)};
  while (::clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, nullptr) == EINTR) {
  }
}

std::string hexadecimal(std::uint64_t value) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(value));
  return text;
}

std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (const char letter : text) {
    if (letter == '"' || letter == '\\') out += '\\';
    out += letter;
  }
  return out + '"';
}

/// Writes the report when the library goes, after the destructors of the program.
struct reporter {
  reporter() = default;
  reporter(const reporter&) = delete;
  reporter& operator=(const reporter&) = delete;
  ~reporter() {
    machine& all = machine::instance();
    if (all.forked()) return;
    const std::lock_guard lock(all.mutex);
    if (all.now.report.empty()) return;
    std::FILE* const file = std::fopen(all.now.report.c_str(), "w");
    if (file == nullptr) {
      std::fprintf(stderr, "fake libcuda.so.1: cannot write %s\n", all.now.report.c_str());
      return;
    }
    const std::string text = all.report();
    std::fwrite(text.data(), 1, text.size(), file);
    std::fclose(file);
  }
};

const reporter at_exit;

}  // namespace

std::uint64_t checksum_of(const std::byte* bytes, std::size_t size) noexcept {
  constexpr std::uint64_t prime = 0x9E3779B97F4A7C15U;
  std::uint64_t lanes[4] = {1, 2, 3, 4};
  std::size_t at = 0;
  for (; at + 32 <= size; at += 32) {
    for (std::size_t lane = 0; lane < 4; ++lane) {
      std::uint64_t word;
      std::memcpy(&word, bytes + at + lane * 8, 8);
      lanes[lane] = (lanes[lane] ^ word) * prime;
      lanes[lane] ^= lanes[lane] >> 29;
    }
  }
  std::uint64_t sum = size;
  for (; at < size; ++at) sum = (sum ^ static_cast<std::uint64_t>(bytes[at])) * prime;
  for (const std::uint64_t lane : lanes) sum = ((sum ^ lane) * prime) ^ (sum >> 31);
  return sum;
}

bool loses_context(CUresult code) noexcept {
  switch (code) {
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_NVLINK_UNCORRECTABLE:
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
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

// --- The process and its threads ---------------------------------------------------------------

machine& machine::instance() {
  static machine* const made = new machine;
  return *made;
}

machine::machine() : now(settings::of_environment()) {}

void machine::initialise() noexcept {
  initialised = true;
  // Relaxed: a child has what its parent had, and in one process this changes from "none" alone.
  owner_.store(::getpid(), std::memory_order_relaxed);
}

bool machine::forked() const noexcept {
  const pid_t owner = owner_.load(std::memory_order_relaxed);
  return owner != 0 && owner != ::getpid();
}

thread_state& thread_state::here() {
  static thread_local thread_state mine;
  return mine;
}

thread_state::~thread_state() {
  if (current.empty() || set_current) return;
  machine& all = machine::instance();
  if (all.forked()) return;
  const std::lock_guard lock(all.mutex);
  all.violation("a thread ended with " + std::to_string(current.size()) +
                " contexts that it had pushed and not popped");
}

void machine::violation(std::string text) {
  ++counters["violations"];
  if (now.abort) {
    std::fprintf(stderr, "fake libcuda.so.1: %s\n", text.c_str());
    std::abort();
  }
  if (violations.size() < most_violations) violations.push_back(std::move(text));
}

CUresult machine::planned(std::string_view function, std::uint64_t nth) {
  std::string_view base = function;
  for (const std::string_view version : {"_v2", "_v3"}) {
    if (base.ends_with(version)) base.remove_suffix(version.size());
  }
  for (const planned_failure& one : now.fail) {
    if (one.function != function && one.function != base) continue;
    if (nth == one.nth || (one.from_then_on && nth > one.nth))
      return static_cast<CUresult>(one.code);
  }
  return CUDA_SUCCESS;
}

// --- Devices and their memory ------------------------------------------------------------------

device& machine::at(int ordinal) {
  auto& found = devices[ordinal];
  if (found == nullptr) {
    found = std::make_unique<device>();
    found->ordinal = ordinal;
    found->default_pool.of = found.get();
    found->size = rounded(std::max(now.memory, settings{}.memory), std::size_t{2} << 20);
    // Two of a size: one that gives the addresses and faults, one that holds the bytes.
    const auto map = [&found](int protection) {
      void* const mapped = ::mmap(nullptr, found->size, protection,
                                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (mapped == MAP_FAILED) {
        std::fprintf(stderr, "fake libcuda.so.1: no address space for a device of %zu bytes\n",
                     found->size);
        std::abort();
      }
      return static_cast<std::byte*>(mapped);
    };
    found->reserved = map(PROT_NONE);
    found->backing = map(PROT_READ | PROT_WRITE);
    ::madvise(found->backing, found->size, MADV_HUGEPAGE);
    ::madvise(found->backing, found->size, MADV_DONTDUMP);
    // What is at the very start is not an allocation, so that no small number is an address.
    found->holes.emplace(granularity, found->size - granularity);
  }
  return *found;
}

void machine::lose(device& which, CUresult code) {
  if (which.lost != CUDA_SUCCESS) return;
  which.lost = code;
  changed.notify_all();
  for (const auto& one : threads) one->work.notify_all();
}

CUresult machine::allocate(device& which, std::size_t size, const std::shared_ptr<context>& by,
                           CUdeviceptr& out, std::uint64_t& number) {
  if (size == 0) return CUDA_ERROR_INVALID_VALUE;
  const std::size_t taken = rounded(size, granularity);
  if (taken < size || which.used + taken > now.memory) return CUDA_ERROR_OUT_OF_MEMORY;
  for (auto hole = which.holes.begin(); hole != which.holes.end(); ++hole) {
    const auto [offset, room] = *hole;
    if (room < taken) continue;
    which.holes.erase(hole);
    if (room > taken) which.holes.emplace(offset + taken, room - taken);
    which.used += taken;
    number = next_number_++;
    which.allocations[offset] = {
        .number = number, .offset = offset, .size = size, .taken = taken, .of = by};
    places_[number] = {&which, offset};
    out = reinterpret_cast<CUdeviceptr>(which.reserved + offset);
    counters["device_bytes"] += taken;
    auto& peak = counters["peak_device_bytes"];
    peak = std::max(peak, counters["device_bytes"]);
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_OUT_OF_MEMORY;
}

void machine::release(device& which, std::size_t offset) {
  const auto found = which.allocations.find(offset);
  const std::size_t taken = found->second.taken;
  places_.erase(found->second.number);
  which.allocations.erase(found);
  which.used -= taken;
  counters["device_bytes"] -= taken;
  auto hole = which.holes.emplace(offset, taken).first;
  const auto next = std::next(hole);
  if (next != which.holes.end() && next->first == offset + taken) {
    hole->second += next->second;
    which.holes.erase(next);
  }
  if (hole != which.holes.begin()) {
    const auto before = std::prev(hole);
    if (before->first + before->second == hole->first) {
      before->second += hole->second;
      which.holes.erase(hole);
    }
  }
}

allocation* machine::find(CUdeviceptr address, std::size_t size, device** which) {
  for (auto& [ordinal, one] : devices) {
    const auto base = reinterpret_cast<CUdeviceptr>(one->reserved);
    if (address < base || address - base >= one->size) continue;
    const std::size_t offset = address - base;
    auto found = one->allocations.upper_bound(offset);
    if (found == one->allocations.begin()) return nullptr;
    allocation& holds = std::prev(found)->second;
    if (offset - holds.offset > holds.size || size > holds.size - (offset - holds.offset))
      return nullptr;
    if (offset - holds.offset == holds.size) return nullptr;
    if (which != nullptr) *which = one.get();
    return &holds;
  }
  return nullptr;
}

allocation* machine::find(std::uint64_t number, device** which) {
  const auto found = places_.find(number);
  if (found == places_.end()) return nullptr;
  const auto [of, offset] = found->second;
  if (which != nullptr) *which = of;
  return &of->allocations.at(offset);
}

std::byte* machine::host_address(CUdeviceptr address) {
  device* which = nullptr;
  if (find(address, 1, &which) == nullptr) return nullptr;
  return which->backing + (address - reinterpret_cast<CUdeviceptr>(which->reserved));
}

// --- Host memory -------------------------------------------------------------------------------

pinned_range* machine::find_pinned(const void* begin, std::size_t size) {
  const auto address = reinterpret_cast<std::uintptr_t>(begin);
  auto found = pinned.upper_bound(address);
  if (found == pinned.begin()) return nullptr;
  pinned_range& holds = std::prev(found)->second;
  const std::size_t offset = address - holds.begin;
  if (offset >= holds.size || size > holds.size - offset) return nullptr;
  return &holds;
}

CUresult machine::pin(void* begin, std::size_t size, bool own, const std::shared_ptr<context>& by) {
  if (now.pinned != 0 && pinned_bytes_ + size > now.pinned) return CUDA_ERROR_OUT_OF_MEMORY;
  const auto address = reinterpret_cast<std::uintptr_t>(begin);
  const auto after = pinned.lower_bound(address);
  const bool meets_next = after != pinned.end() && after->first < address + size;
  const bool meets_previous =
      after != pinned.begin() && std::prev(after)->first + std::prev(after)->second.size > address;
  if (meets_next || meets_previous) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  pinned[address] = {
      .number = next_number_++, .begin = address, .size = size, .own = own, .of = by};
  pinned_bytes_ += size;
  auto& peak = counters["peak_pinned_bytes"];
  peak = std::max<std::uint64_t>(peak, pinned_bytes_);
  return CUDA_SUCCESS;
}

CUresult machine::unpin(std::unique_lock<std::mutex>& lock, void* begin, bool own) {
  const auto address = reinterpret_cast<std::uintptr_t>(begin);
  auto found = pinned.find(address);
  if (found == pinned.end() || found->second.own != own) {
    violation("memory that is not pinned at " + hexadecimal(address) + " was unpinned");
    return own ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
  }
  if (found->second.queued != 0) {
    violation("memory at " + hexadecimal(address) + " was unpinned while " +
              std::to_string(found->second.queued) + " copies of it were queued");
  }
  const std::uint64_t number = found->second.number;
  // A copy that has begun must not lose its memory under it; those that have not will find it gone.
  changed.wait(lock, [&] {
    const auto again = pinned.find(address);
    return again == pinned.end() || again->second.number != number || again->second.running == 0;
  });
  found = pinned.find(address);
  if (found == pinned.end() || found->second.number != number) return CUDA_ERROR_INVALID_VALUE;
  const std::size_t size = found->second.size;
  pinned_bytes_ -= size;
  pinned.erase(found);
  if (own) ::munmap(begin, size);
  return CUDA_SUCCESS;
}

// --- Streams -----------------------------------------------------------------------------------

std::shared_ptr<stream> machine::make_stream(std::shared_ptr<context> of, unsigned flags,
                                             int priority) {
  auto made = std::make_shared<stream>();
  made->of = std::move(of);
  made->flags = flags;
  made->priority = priority;
  made->random.seed(now.seed * 1'000'003 + next_stream_++);
  made->running = true;

  // Signals are for the program's threads.
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_attr_t attributes;
  ::pthread_attr_init(&attributes);
  ::pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  auto* const argument = new std::shared_ptr<stream>(made);
  // Under the mutex, which the new thread takes first: it finds its own number in its place.
  const int failed = ::pthread_create(&made->thread, &attributes, &machine::run, argument);
  ::pthread_attr_destroy(&attributes);
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (failed != 0) {
    delete argument;
    return nullptr;
  }
  threads.push_back(made);
  return made;
}

std::shared_ptr<stream> machine::find_stream(CUstream handle,
                                             const std::shared_ptr<context>& current) {
  if (handle == nullptr || handle == CU_STREAM_LEGACY) {
    if (current == nullptr) return nullptr;
    if (current->legacy == nullptr) current->legacy = make_stream(current, CU_STREAM_DEFAULT, 0);
    return current->legacy;
  }
  if (handle == CU_STREAM_PER_THREAD) {
    if (current == nullptr) return nullptr;
    auto& mine = current->of_threads[::pthread_self()];
    if (mine == nullptr) mine = make_stream(current, CU_STREAM_DEFAULT, 0);
    return mine;
  }
  const auto found = streams.find(handle);
  return found == streams.end() ? nullptr : found->second;
}

void machine::push(const std::shared_ptr<stream>& into, operation what) {
  const auto add = [](stream& to, operation one) {
    to.queue.push_back(std::move(one));
    ++to.queued;
    to.work.notify_all();
  };
  const auto after = [&add](stream& to, const std::shared_ptr<stream>& other) {
    if (other == nullptr || other->finished == other->queued) return;
    add(to, {.what = action::wait_for_stream, .other = other, .until = other->queued});
  };
  // The legacy default stream and the blocking ones wait for each other.
  context& of = *into->of;
  if (into == of.legacy) {
    for (const auto& other : threads) {
      if (other->of == into->of && other != into && other->blocking()) after(*into, other);
    }
  } else if (into->blocking()) {
    after(*into, of.legacy);
  }
  add(*into, std::move(what));
}

void machine::close(const std::shared_ptr<stream>& which) {
  which->closed = true;
  which->work.notify_all();
}

CUresult machine::wait(std::unique_lock<std::mutex>& lock, const std::shared_ptr<stream>& which) {
  const std::uint64_t until = which->queued;
  const device& of = *which->of->of;
  // Not before a copy that runs has ended: its memory may be the caller's.
  changed.wait(lock, [&] {
    return which->finished >= until || (of.lost != CUDA_SUCCESS && !which->moving);
  });
  return of.lost;
}

CUresult machine::wait(std::unique_lock<std::mutex>& lock, const std::shared_ptr<context>& all_of) {
  const auto waited_for = threads;
  for (const auto& one : waited_for) {
    if (one->of != all_of) continue;
    const CUresult code = wait(lock, one);
    if (code != CUDA_SUCCESS) return code;
  }
  return all_of->of->lost;
}

void machine::release_context(std::unique_lock<std::mutex>& lock, device& which) {
  const std::shared_ptr<context> ending = which.primary;
  // From here on nothing of it begins; what runs still has its memory.
  ending->gone = true;
  which.primary.reset();
  for (const auto& one : threads) one->work.notify_all();
  changed.wait(lock, [&] {
    return std::ranges::none_of(threads,
                                [&](const auto& one) { return one->of == ending && one->moving; });
  });
  const std::string where = " of cuda:" + std::to_string(which.ordinal) +
                            " still there when its context was released for the last time";
  const auto leaked = [&](std::size_t number, const char* what) {
    if (number != 0) violation(std::to_string(number) + " " + what + where);
  };
  std::size_t number = 0;
  for (auto one = streams.begin(); one != streams.end();) {
    if (one->second->of != ending) {
      ++one;
      continue;
    }
    close(one->second);
    one = streams.erase(one);
    ++number;
  }
  leaked(number, "streams");
  number = std::erase_if(events, [&](const auto& one) { return one.second->of == ending; });
  leaked(number, "events");
  number = 0;
  for (auto one = which.allocations.begin(); one != which.allocations.end();) {
    const auto [offset, held_by] = *one;
    ++one;
    // Somebody else may have retained the device anew while this waited.
    if (held_by.of != ending) continue;
    // What waits for its free in a stream has been given back.
    if (!held_by.going) ++number;
    release(which, offset);
  }
  leaked(number, "allocations");
  if (which.primary == nullptr) {
    number = std::erase_if(pools, [&](const auto& one) { return one.second->of == &which; });
    leaked(number, "memory pools");
    which.current_pool = nullptr;
  }
  number = 0;
  for (auto one = pinned.begin(); one != pinned.end();) {
    if (one->second.of != ending) {
      ++one;
      continue;
    }
    pinned_bytes_ -= one->second.size;
    one = pinned.erase(one);
    ++number;
  }
  leaked(number, "pinned ranges");

  if (ending->legacy != nullptr) close(ending->legacy);
  for (const auto& [thread, one] : ending->of_threads) close(one);
  ending->legacy.reset();
  ending->of_threads.clear();
  changed.notify_all();
}

void machine::let_go(stream* one) {
  if (one == nullptr) held = false;
  for (const auto& each : threads) {
    if (one != nullptr && each.get() != one) continue;
    each->held = false;
    each->work.notify_all();
  }
}

void machine::start_over() {
  now = settings::of_environment();
  let_go(nullptr);
  capturing = false;
  for (const auto& [handle, one] : streams) one->capturing = false;
  for (const auto& [ordinal, one] : devices) one->lost = CUDA_SUCCESS;
  const std::uint64_t bytes = counters["device_bytes"];
  counters.clear();
  counters["device_bytes"] = counters["peak_device_bytes"] = bytes;
  counters["peak_pinned_bytes"] = pinned_bytes_;
  calls.clear();
  violations.clear();
  copies_begun_ = 0;
}

void* machine::run(void* argument) {
  auto* const given = static_cast<std::shared_ptr<stream>*>(argument);
  const std::shared_ptr<stream> mine = *given;
  delete given;
  ::pthread_setname_np(::pthread_self(), "fake-cuda");
  // Waiting out the rest of a copy is as exact as the kernel can make it.
  ::prctl(PR_SET_TIMERSLACK, 1UL, 0, 0, 0);
  instance().work(mine);
  return nullptr;
}

void machine::work(const std::shared_ptr<stream>& mine) {
  std::unique_lock lock(mutex);
  const device& of = *mine->of->of;
  for (;;) {
    mine->work.wait(lock, [&] {
      if (mine->queue.empty()) return mine->closed;
      return (!held && !mine->held) || of.lost != CUDA_SUCCESS || mine->of->gone;
    });
    if (mine->queue.empty()) break;
    operation next = std::move(mine->queue.front());
    mine->queue.pop_front();
    if (now.delay_us != 0 && of.lost == CUDA_SUCCESS) {
      const std::chrono::microseconds delay(mine->random() % (now.delay_us + 1));
      lock.unlock();
      sleep_until(steady::now() + delay);
      lock.lock();
    }
    execute(lock, *mine, next);
    ++mine->finished;
    // Held by what has ended alone: it may be the last to hold a stream or a context.
    next = {};
    changed.notify_all();
  }
  cpu_of_the_ended_ += nanoseconds(CLOCK_THREAD_CPUTIME_ID) - mine->foreign_cpu;
  mine->running = false;
  std::erase(threads, mine);
}

void machine::execute(std::unique_lock<std::mutex>& lock, stream& mine, operation& what) {
  const device& of = *mine.of->of;
  const bool dead = of.lost != CUDA_SUCCESS || mine.of->gone;
  switch (what.what) {
    case action::copy:
    case action::fill:
      copy(lock, mine, what);
      break;
    case action::record:
      if (dead) break;
      what.mark->reached = true;
      what.mark->at = steady::now();
      break;
    case action::wait: {
      const context& recorded = *what.mark->of;
      changed.wait(lock, [&] {
        return what.mark->reached || of.lost != CUDA_SUCCESS || mine.of->gone || recorded.gone ||
               recorded.of->lost != CUDA_SUCCESS;
      });
      break;
    }
    case action::wait_for_stream:
      changed.wait(lock, [&] {
        return what.other->finished >= what.until || of.lost != CUDA_SUCCESS || mine.of->gone;
      });
      break;
    case action::host: {
      if (dead) break;
      ++counters["host_functions"];
      lock.unlock();
      const std::int64_t before = nanoseconds(CLOCK_THREAD_CPUTIME_ID);
      thread_state::here().in_host_function = true;
      what.call(what.data);
      thread_state::here().in_host_function = false;
      const std::int64_t after = nanoseconds(CLOCK_THREAD_CPUTIME_ID);
      lock.lock();
      mine.foreign_cpu += after - before;
      break;
    }
    case action::ready:
      if (auto* const found = find(what.number)) found->ready = true;
      break;
    case action::free: {
      // Also when the device is lost: the memory was given back.
      device* which = nullptr;
      if (const auto* const found = find(what.number, &which)) release(*which, found->offset);
      break;
    }
  }
}

void machine::copy(std::unique_lock<std::mutex>& lock, stream& mine, operation& what) {
  device& of = *mine.of->of;
  const auto unpinned = [&]() -> pinned_range* {
    if (what.pinned == 0) return nullptr;
    for (auto& [begin, one] : pinned) {
      if (one.number == what.pinned) return &one;
    }
    return nullptr;
  };
  pinned_range* range = unpinned();
  const auto finish = [&] {
    range = unpinned();
    if (range != nullptr) --range->queued;
  };
  if (of.lost != CUDA_SUCCESS || mine.of->gone) {
    finish();
    return;
  }
  const bool fills = what.what == action::fill;
  if (!fills && now.fail_copy != 0 && ++copies_begun_ == now.fail_copy) {
    finish();
    lose(of, static_cast<CUresult>(now.fail_copy_code));
    return;
  }
  bool valid = true;
  if (what.pinned != 0 && range == nullptr) {
    // Told of where it was unpinned.
    valid = false;
  }
  for (const std::uint64_t number : {what.to_number, what.from_number}) {
    if (number == 0) continue;
    const auto* const memory = find(number);
    if (memory == nullptr) {
      violation("device memory was freed before a copy of " + std::to_string(what.size) +
                " bytes had ended");
      valid = false;
    } else if (!memory->ready) {
      violation("device memory was used before its stream had reached its allocation");
      valid = false;
    }
  }
  if (!valid) {
    finish();
    return;
  }
  if (range != nullptr) ++range->running;
  mine.moving = true;

  const double rate = now.copy_gbps;
  const bool moves = now.move;
  lock.unlock();
  const auto began = steady::now();
  if (fills) {
    std::memset(what.to, what.filling, what.size);
  } else if (moves) {
    std::memmove(what.to, what.from, what.size);
  }
  lock.lock();
  if (rate > 0) {
    auto& busy = of.busy[static_cast<std::size_t>(what.towards)];
    const std::chrono::nanoseconds takes(
        static_cast<std::int64_t>(static_cast<double>(what.size) / rate));
    busy = std::max(busy, began) + takes;
    const auto until = busy;
    if (until > steady::now()) {
      lock.unlock();
      sleep_until(until);
      lock.lock();
    }
  }
  if (what.checked) {
    lock.unlock();
    const bool same = checksum_of(what.from, what.size) == what.checksum &&
                      (!moves || checksum_of(what.to, what.size) == what.checksum);
    lock.lock();
    if (!same) {
      violation("the source of a copy of " + std::to_string(what.size) +
                " bytes was overwritten before the copy had ended");
    }
  }
  if (!fills) {
    ++counters["copies"];
    counters["copied_bytes"] += what.size;
  }
  range = unpinned();
  if (range != nullptr) --range->running;
  mine.moving = false;
  finish();
}

// --- What has been seen ------------------------------------------------------------------------

std::size_t machine::resident() const {
  constexpr std::size_t page = 4096;
  constexpr std::size_t step = std::size_t{1} << 30;
  std::vector<unsigned char> pages(step / page);
  std::size_t bytes = 0;
  for (const auto& [ordinal, one] : devices) {
    for (std::size_t at = 0; at < one->size; at += step) {
      const std::size_t part = std::min(step, one->size - at);
      if (::mincore(one->backing + at, part, pages.data()) != 0) continue;
      for (std::size_t index = 0; index < part / page; ++index) bytes += pages[index] & 1U;
    }
  }
  return bytes * page;
}

std::int64_t machine::own_cpu() const {
  std::int64_t total = cpu_of_the_ended_;
  for (const auto& one : threads) {
    clockid_t clock{};
    if (one->running && ::pthread_getcpuclockid(one->thread, &clock) == 0)
      total += nanoseconds(clock) - one->foreign_cpu;
  }
  return total;
}

std::uint64_t machine::count(std::string_view name) {
  if (const auto found = calls.find(name); found != calls.end()) return found->second;
  if (name == "streams") return streams.size();
  if (name == "events") return events.size();
  if (name == "pools") return pools.size();
  if (name == "pinned_ranges") return pinned.size();
  if (name == "pinned_bytes") return pinned_bytes_;
  if (name == "resident_bytes") return resident();
  if (name == "cpu_microseconds") return static_cast<std::uint64_t>(own_cpu() / 1000);
  std::uint64_t sum = 0;
  if (name == "queued") {
    for (const auto& one : threads) sum += one->queued - one->finished;
    return sum;
  }
  if (name == "contexts" || name == "references" || name == "allocations") {
    for (const auto& [ordinal, one] : devices) {
      if (name == "contexts") sum += one->primary != nullptr ? 1 : 0;
      if (name == "references") sum += one->references;
      if (name != "allocations") continue;
      for (const auto& [offset, held_by] : one->allocations) sum += held_by.going ? 0 : 1;
    }
    return sum;
  }
  const auto found = counters.find(name);
  return found == counters.end() ? 0 : found->second;
}

std::vector<std::pair<std::string, std::uint64_t>> machine::leaks() {
  std::vector<std::pair<std::string, std::uint64_t>> found;
  for (const char* const kind :
       {"streams", "events", "allocations", "pools", "pinned_ranges", "references"}) {
    const std::uint64_t there = count(kind);
    if (there != 0) found.emplace_back(kind, there);
  }
  return found;
}

std::string machine::report() {
  std::string text = "{";
  for (const char* const name :
       {"copies", "copied_bytes", "host_functions", "queued", "pinned_bytes", "peak_pinned_bytes",
        "device_bytes", "peak_device_bytes", "resident_bytes", "cpu_microseconds"}) {
    text += quoted(name) + ": " + std::to_string(count(name)) + ", ";
  }
  const auto numbers = [](const auto& pairs) {
    std::string out = "{";
    for (const auto& [name, number] : pairs) {
      if (out.size() > 1) out += ", ";
      out += quoted(name) + ": " + std::to_string(number);
    }
    return out + "}";
  };
  text += "\"calls\": " + numbers(calls) + ", \"leaks\": " + numbers(leaks());
  text += ", \"violations\": [";
  for (std::size_t at = 0; at < violations.size(); ++at)
    text += (at == 0 ? "" : ", ") + quoted(violations[at]);
  return text + "]}\n";
}

}  // namespace fake_cuda
