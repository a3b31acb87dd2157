#include "output.hpp"

#include "text.hpp"

#include <headrace/base/error.hpp>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <system_error>

namespace headrace::cli {
namespace {

std::error_code last_error() { return {errno, std::system_category()}; }

[[nodiscard]] bool write_all(int descriptor, std::string_view text) noexcept {
  while (!text.empty()) {
    const ssize_t written = write(descriptor, text.data(), text.size());
    if (written < 0 && errno != EINTR) return false;
    if (written > 0) text.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

[[noreturn]] void cannot_write(const std::string& path, std::error_code code) {
  throw system_failure(code, "cannot write " + printable_name(path));
}

// The file behind links, and whether it is written under another name first.
struct target {
  std::string path;
  bool regular = true;
};

target target_of(const std::string& path) {
  struct stat found{};
  if (stat(path.c_str(), &found) != 0) {
    if (errno != ENOENT) cannot_write(path, last_error());
    return {path};
  }
  if (S_ISDIR(found.st_mode)) cannot_write(path, std::make_error_code(std::errc::is_a_directory));
  if (!S_ISREG(found.st_mode)) return {path, false};
  std::error_code failed;
  const std::filesystem::path resolved = std::filesystem::canonical(path, failed);
  if (failed) cannot_write(path, failed);
  return {resolved.string()};
}

std::string folder_of(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

// A descriptor that closes itself; `close()` tells whether the bytes arrived.
class descriptor {
 public:
  explicit descriptor(int number) noexcept : number_(number) {}
  ~descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  descriptor(const descriptor&) = delete;
  descriptor& operator=(const descriptor&) = delete;
  [[nodiscard]] int number() const noexcept { return number_; }
  [[nodiscard]] bool close() noexcept {
    const int closed = ::close(number_);
    number_ = -1;
    return closed == 0;
  }

 private:
  int number_;
};

void write_directly(const std::string& path, std::string_view text) {
  descriptor file(open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NOCTTY));
  if (file.number() < 0 || !write_all(file.number(), text) || !file.close())
    cannot_write(path, last_error());
}

}  // namespace

void write_standard_output(std::string_view text) {
  if (write_all(STDOUT_FILENO, text)) return;
  throw error(errc::unavailable, "cannot write to standard output: " + last_error().message());
}

void check_can_write(const std::string& path) {
  const target file = target_of(path);
  const std::string asked = file.regular ? folder_of(file.path) : file.path;
  if (access(asked.c_str(), W_OK) != 0) cannot_write(path, last_error());
}

void write_file(const std::string& path, std::string_view text) {
  const target file = target_of(path);
  if (!file.regular) {
    write_directly(path, text);
    return;
  }
  std::string temporary = file.path + ".XXXXXX";
  descriptor written(mkostemp(temporary.data(), O_CLOEXEC));
  if (written.number() < 0) cannot_write(path, last_error());
  // mkostemp makes it private; a file of the user's own making would not be.
  const mode_t mask = umask(0);
  umask(mask);
  static_cast<void>(fchmod(written.number(), 0666 & ~mask));
  if (write_all(written.number(), text) && written.close() &&
      rename(temporary.c_str(), file.path.c_str()) == 0)
    return;
  const std::error_code failed = last_error();
  unlink(temporary.c_str());
  cannot_write(path, failed);
}

}  // namespace headrace::cli
