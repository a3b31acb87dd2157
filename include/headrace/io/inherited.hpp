#pragma once

#include <headrace/base/export.hpp>

namespace headrace::detail {

/// The descriptors of every loop of the process, so that a forked child can close what it
/// inherited: sockets that it shared with its parent would mix two conversations, and a ring is its
/// maker's alone. Regular files are not among them: reading at an offset shares nothing.
///
/// Threads: any. Between `lock` and `unlock` or `close_in_child`, around a fork, nobody else gets
/// in.
class HEADRACE_API inherited_descriptors {
 public:
  static void add(int number);
  static void forget(int number) noexcept;
  /// Forgets and closes.
  static void close(int number) noexcept;

  static void lock() noexcept;
  static void unlock() noexcept;

  /// In the child, whose copy it then is: closes and forgets all. Unlocks.
  static void close_in_child() noexcept;
};

}  // namespace headrace::detail
