#include <headrace/io/file.hpp>

#include "io/engine.hpp"

#include <headrace/io/blocking_pool.hpp>

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

task<result<file>> file::open(io_context& context, std::string path) {
  HEADRACE_ASSERT(context.helpers() != nullptr);
  struct opened_file {
    int number;
    int failed;
  };
  // O_NONBLOCK: opening a FIFO must not wait for a writer; regular files do not care.
  auto opening = context.helpers()->run([&path] {
    const int number = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    return opened_file{number, errno};
  });
  const opened_file opened = co_await opening;
  if (opened.number < 0) {
    co_return failure{
        system_failure({opened.failed, std::system_category()}, "cannot open " + path)};
  }
  auto descriptor = std::make_unique<detail::descriptor>();
  descriptor->number = opened.number;
  file made(std::move(descriptor));
  const auto status = made.status();
  if (status && !S_ISREG(status->st_mode)) {
    co_return failure{error(errc::invalid_request, path + " is not a regular file")};
  }
  co_return std::move(made);
}

io_operation<std::size_t> file::read(io_context& context, std::uint64_t offset,
                                     buffer_sequence destination) const {
  return {context,
          descriptor_.get(),
          detail::operation_kind::read_file,
          {.buffers = destination, .offset = offset}};
}

io_result<struct stat> file::status() const {
  struct stat found{};
  if (::fstat(descriptor_->number, &found) != 0)
    return failure{std::error_code(errno, std::system_category())};
  return found;
}

}  // namespace headrace
