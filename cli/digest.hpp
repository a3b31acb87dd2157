#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace headrace::cli {

/// SHA-256. One object serves many messages, one after another.
class sha256 {
 public:
  sha256();

  /// In 64 lower-case hexadecimal digits.
  [[nodiscard]] std::string operator()(std::span<const std::byte> bytes);

 private:
  struct state;
  struct free_state {
    void operator()(state* freed) const noexcept;
  };
  std::unique_ptr<state, free_state> state_;
};

}  // namespace headrace::cli
