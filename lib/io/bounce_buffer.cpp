#include <headrace/io/bounce_buffer.hpp>

#include "io/bounce_pool.hpp"
#include "io/engine.hpp"

#include <headrace/base/assert.hpp>
#include <headrace/io/blocking_pool.hpp>
#include <headrace/io/io_context.hpp>

#include <linux/capability.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <new>
#include <utility>

namespace headrace {
namespace {

/// Whether so much may be locked without taking it from others: the limit holds for all rings and
/// processes of a user together, and newer kernels count the rings themselves.
bool may_lock(std::size_t size) noexcept {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  std::array<__user_cap_data_struct, _LINUX_CAPABILITY_U32S_3> rights{};
  if (::syscall(SYS_capget, &header, rights.data()) == 0 &&
      (rights[CAP_IPC_LOCK / 32].effective & (1U << (CAP_IPC_LOCK % 32))) != 0)
    return true;
  rlimit limit{};
  return ::getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur / 16 >= size;
}

}  // namespace

namespace detail {

std::shared_ptr<bounce_pool> bounce_pool::make() {
  void* const mapped = ::mmap(nullptr, kept * bounce_buffer::largest, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  // Touched here, not in the loop's first read.
  std::memset(mapped, 0, kept * bounce_buffer::largest);
  try {
    return std::shared_ptr<bounce_pool>(new bounce_pool(static_cast<std::byte*>(mapped)));
  } catch (...) {
    ::munmap(mapped, kept * bounce_buffer::largest);
    throw;
  }
}

bounce_pool::bounce_pool(std::byte* memory) noexcept : memory_(memory) {
  for (std::size_t at = 0; at < kept; ++at) free_[at] = memory + at * bounce_buffer::largest;
}

bounce_pool::~bounce_pool() { ::munmap(memory_, kept * bounce_buffer::largest); }

void bounce_pool::register_with(io_engine& engine) noexcept {
  if (!may_lock(kept * bounce_buffer::largest)) return;
  std::array<iovec, kept> buffers{};
  for (std::size_t at = 0; at < kept; ++at)
    buffers[at] = {memory_ + at * bounce_buffer::largest, bounce_buffer::largest};
  registered_ = engine.register_buffers(buffers);
}

bool bounce_pool::holds(const std::byte* bytes) const noexcept {
  return bytes >= memory_ && bytes < memory_ + kept * bounce_buffer::largest;
}

bounce_buffer bounce_pool::borrow(std::size_t size) {
  HEADRACE_ASSERT(size <= bounce_buffer::largest);
  if (available_ == 0) {
    auto* const own =
        static_cast<std::byte*>(::operator new(size, std::align_val_t{bounce_buffer::alignment}));
    return {shared_from_this(), {own, size}, -1};
  }
  std::byte* const slot = free_[--available_];
  const auto number =
      static_cast<int>((slot - memory_) / static_cast<std::ptrdiff_t>(bounce_buffer::largest));
  return {shared_from_this(), {slot, bounce_buffer::largest}, registered_ ? number : -1};
}

void bounce_pool::give_back(std::span<std::byte> bytes) noexcept {
  if (holds(bytes.data())) {
    free_[available_++] = bytes.data();
  } else {
    ::operator delete(bytes.data(), std::align_val_t{bounce_buffer::alignment});
  }
}

}  // namespace detail

bounce_buffer::bounce_buffer(bounce_buffer&& other) noexcept
    : pool_(std::move(other.pool_)),
      bytes_(std::exchange(other.bytes_, {})),
      registered_(std::exchange(other.registered_, -1)) {}

bounce_buffer& bounce_buffer::operator=(bounce_buffer&& other) noexcept {
  if (this != &other) {
    reset();
    pool_ = std::move(other.pool_);
    bytes_ = std::exchange(other.bytes_, {});
    registered_ = std::exchange(other.registered_, -1);
  }
  return *this;
}

bounce_buffer::~bounce_buffer() { reset(); }

void bounce_buffer::reset() noexcept {
  if (pool_ != nullptr) pool_->give_back(bytes_);
  pool_.reset();
}

task<bounce_buffer> bounce_buffer::borrow(io_context& context, std::size_t size) {
  auto& pool = context.bounce();
  if (pool == nullptr) {
    HEADRACE_ASSERT(context.helpers() != nullptr);
    auto making = context.helpers()->run(&detail::bounce_pool::make);
    auto made = co_await making;
    // Another read may have come first meanwhile.
    if (pool == nullptr) {
      pool = std::move(made);
      pool->register_with(context.engine());
    }
  }
  co_return pool->borrow(size);
}

}  // namespace headrace
