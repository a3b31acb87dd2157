#pragma once

#include <headrace/base/export.hpp>
#include <headrace/io/buffer_sequence.hpp>

#include <cstddef>
#include <cstdint>

namespace headrace {

/// Where the bytes of one range go, in order: the final memory of tensors, a staging slot, a
/// buffer.
///
/// A source asks where the next bytes belong, has them received there, and says how many came.
/// After a broken connection it goes on from the first byte that is missing: what was committed is
/// never asked for again. Threads: one source at a time, on one loop.
class HEADRACE_API range_sink {
 public:
  /// Where the next bytes go: at least one byte and at most `most`. The vectors and their memory
  /// stay valid until the next call of this or until the source is done.
  [[nodiscard]] virtual buffer_sequence prepare(std::uint64_t most) = 0;

  /// `size` bytes have arrived in what `prepare` gave. They are of the pinned version and from the
  /// right place.
  virtual void commit(std::size_t size) = 0;

 protected:
  ~range_sink() = default;
};

/// A sink that fills one buffer.
class HEADRACE_API buffer_sink final : public range_sink {
 public:
  explicit buffer_sink(std::span<std::byte> into) noexcept : into_(into) {}

  [[nodiscard]] buffer_sequence prepare(std::uint64_t most) override {
    const auto rest = into_.subspan(filled_);
    next_ =
        as_buffer(rest.first(static_cast<std::size_t>(most < rest.size() ? most : rest.size())));
    return {&next_, 1};
  }
  void commit(std::size_t size) override { filled_ += size; }

  [[nodiscard]] std::size_t filled() const noexcept { return filled_; }

 private:
  std::span<std::byte> into_;
  std::size_t filled_ = 0;
  iovec next_{};
};

}  // namespace headrace
