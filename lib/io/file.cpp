#include <headrace/io/file.hpp>

#include "io/engine.hpp"

#include <headrace/io/blocking_pool.hpp>
#include <headrace/io/bounce_buffer.hpp>

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

namespace headrace {

file::file() noexcept = default;
file::file(file&& other) noexcept = default;

file& file::operator=(file&& other) noexcept {
  if (this != &other) {
    close();
    descriptor_ = std::move(other.descriptor_);
  }
  return *this;
}

file::~file() { close(); }

file::file(std::unique_ptr<detail::descriptor> descriptor) noexcept
    : descriptor_(std::move(descriptor)) {}

void file::close() noexcept {
  // Neither backend watches files, so no loop has to know.
  if (descriptor_ != nullptr) ::close(descriptor_->number);
  descriptor_.reset();
}

namespace {

struct opened_file {
  int number = -1;
  int failed = 0;
  direct_alignment direct{};
};

/// The alignment that the file system says it needs; what suits every device where it says nothing;
/// an offset of 0 where it cannot or where it asks for more than we have.
direct_alignment alignment_of([[maybe_unused]] int number) noexcept {
  direct_alignment found{bounce_buffer::alignment, bounce_buffer::alignment};
#ifdef STATX_DIOALIGN
  struct statx said{};
  if (::statx(number, "", AT_EMPTY_PATH, STATX_DIOALIGN, &said) == 0 &&
      (said.stx_mask & STATX_DIOALIGN) != 0) {
    found = {said.stx_dio_mem_align, said.stx_dio_offset_align};
  }
#endif
  const bool usable = found.memory > 0 && found.memory <= bounce_buffer::alignment &&
                      found.offset > 0 && found.offset <= bounce_buffer::largest / 2;
  return usable ? found : direct_alignment{};
}

opened_file open_file(const std::string& path, file_access access) noexcept {
  // O_NONBLOCK: opening a FIFO must not wait for a writer; regular files do not care.
  constexpr int flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK;
  if (access == file_access::direct) {
    const int number = ::open(path.c_str(), flags | O_DIRECT);
    if (number >= 0) {
      const direct_alignment direct = alignment_of(number);
      if (direct.offset == 0) static_cast<void>(::fcntl(number, F_SETFL, O_NONBLOCK));
      return {.number = number, .direct = direct};
    }
    // So do file systems that know nothing of it.
    if (errno != EINVAL) return {.failed = errno};
  }
  const int number = ::open(path.c_str(), flags);
  return {.number = number, .failed = errno};
}

}  // namespace

task<result<file>> file::open(io_context& context, std::string path, file_access access) {
  HEADRACE_ASSERT(context.helpers() != nullptr);
  auto opening = context.helpers()->run([&path, access] { return open_file(path, access); });
  const opened_file opened = co_await opening;
  if (opened.number < 0) {
    co_return failure{
        system_failure({opened.failed, std::system_category()}, "cannot open " + path)};
  }
  auto descriptor = std::make_unique<detail::descriptor>();
  descriptor->number = opened.number;
  descriptor->direct_memory = opened.direct.memory;
  // Relaxed: nobody else has it yet.
  descriptor->direct_offset.store(opened.direct.offset, std::memory_order_relaxed);
  file made(std::move(descriptor));
  const auto status = made.status();
  if (status && !S_ISREG(status->st_mode)) {
    co_return failure{error(errc::invalid_request, path + " is not a regular file")};
  }
  co_return std::move(made);
}

io_operation<std::size_t> file::read(io_context& context, std::uint64_t offset,
                                     buffer_sequence destination, int registered) const {
  return {context,
          descriptor_.get(),
          detail::operation_kind::read_file,
          {.buffers = destination, .offset = offset, .registered = registered}};
}

direct_alignment file::direct() const noexcept {
  // Relaxed: the file's flags are the kernel's own, and what is read here only chooses the way.
  return {descriptor_->direct_memory, descriptor_->direct_offset.load(std::memory_order_relaxed)};
}

void file::leave_direct() const noexcept {
  if (descriptor_->direct_offset.exchange(0, std::memory_order_relaxed) != 0)
    static_cast<void>(::fcntl(descriptor_->number, F_SETFL, O_NONBLOCK));
}

io_result<struct stat> file::status() const {
  struct stat found{};
  if (::fstat(descriptor_->number, &found) != 0)
    return failure{std::error_code(errno, std::system_category())};
  return found;
}

}  // namespace headrace
