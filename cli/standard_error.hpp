#pragma once

#include <mutex>
#include <string>
#include <string_view>

namespace headrace::cli {

/// The program's standard error: lines, and on a terminal one status line below them that is drawn
/// over in place.
///
/// Threads: any.
class standard_error {
 public:
  /// The only one.
  [[nodiscard]] static standard_error& get();

  [[nodiscard]] bool is_terminal() const noexcept { return terminal_; }

  /// How wide the terminal is at the moment.
  [[nodiscard]] unsigned columns() const noexcept;

  /// Writes `text` and a newline, control characters taken out. A status line moves below it.
  void line(std::string_view text);

  /// Shows `text`, which must fit into `columns() - 1`, as the status line instead of the one
  /// before. Does nothing where there is no terminal, where it belongs to another job, or while it
  /// takes no output (Ctrl-S).
  void show_status(std::string_view text);

  /// Erases the status line.
  void clear_status();

  /// The same for a process that is about to end while other threads may be in the middle of
  /// something: waits for nobody.
  void clear_status_or_leave_it();

 private:
  standard_error();

  void erase();
  void write(std::string_view text) const;
  [[nodiscard]] bool ready() const noexcept;

  std::mutex mutex_;
  const bool terminal_;
  const bool escapes_;  ///< Whether it knows more than a carriage return.
  std::string status_;
};

}  // namespace headrace::cli
