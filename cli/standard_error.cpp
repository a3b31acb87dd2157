#include "standard_error.hpp"

#include "text.hpp"

#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

namespace headrace::cli {

standard_error& standard_error::get() {
  static standard_error only;
  return only;
}

standard_error::standard_error()
    : terminal_(isatty(STDERR_FILENO) == 1), escapes_([] {
        const char* const kind = std::getenv("TERM");
        return kind == nullptr || std::string_view(kind) != "dumb";
      }()) {}

unsigned standard_error::columns() const noexcept {
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

void standard_error::line(std::string_view text) {
  const std::lock_guard lock(mutex_);
  const std::string shown = status_;
  erase();
  write(one_line(text) + "\n");
  if (!shown.empty()) {
    write(shown);
    status_ = shown;
  }
}

void standard_error::show_status(std::string_view text) {
  const std::lock_guard lock(mutex_);
  if (!terminal_ || !ready()) return;
  const std::size_t before = width(status_);
  status_ = one_line(text);
  std::string drawn = "\r" + status_;
  if (escapes_) {
    drawn += "\x1b[K";
  } else if (const std::size_t now = width(status_); now < before) {
    drawn.append(before - now, ' ');
  }
  write(drawn);
}

void standard_error::clear_status() {
  const std::lock_guard lock(mutex_);
  erase();
}

void standard_error::clear_status_or_leave_it() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (lock.owns_lock() && ready()) erase();
}

void standard_error::erase() {
  if (status_.empty()) return;
  write(escapes_ ? "\r\x1b[K" : "\r" + std::string(width(status_), ' ') + "\r");
  status_.clear();
}

void standard_error::write(std::string_view text) const {
  while (!text.empty()) {
    const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
    // There is nobody left to tell.
    if (written < 0 && errno != EINTR) return;
    if (written > 0) text.remove_prefix(static_cast<std::size_t>(written));
  }
}

bool standard_error::ready() const noexcept {
  const pid_t foreground = tcgetpgrp(STDERR_FILENO);
  if (foreground > 0 && foreground != getpgrp()) return false;
  pollfd terminal{.fd = STDERR_FILENO, .events = POLLOUT, .revents = 0};
  return poll(&terminal, 1, 0) == 1 && (terminal.revents & POLLOUT) != 0;
}

}  // namespace headrace::cli
