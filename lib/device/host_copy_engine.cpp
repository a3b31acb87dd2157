#include <headrace/device/copy_engine.hpp>

#include <atomic>
#include <cstring>

namespace headrace {
namespace {

class host_copy_engine final : public copy_engine {
 public:
  task<result<void>> copy(std::span<const copy_piece> pieces) override {
    std::uint64_t bytes = 0;
    for (const copy_piece& piece : pieces) {
      if (piece.size > 0) std::memcpy(piece.to, piece.from, piece.size);
      bytes += piece.size;
    }
    // Relaxed: counters, each right by itself.
    pieces_.fetch_add(pieces.size(), std::memory_order_relaxed);
    bytes_.fetch_add(bytes, std::memory_order_relaxed);
    batches_.fetch_add(1, std::memory_order_relaxed);
    co_return result<void>();
  }

  result<void> follow(cuda_stream) override { return {}; }

  copy_statistics statistics() const noexcept override {
    return {.pieces = pieces_.load(std::memory_order_relaxed),
            .bytes = bytes_.load(std::memory_order_relaxed),
            .batches = batches_.load(std::memory_order_relaxed)};
  }

 private:
  std::atomic<std::uint64_t> pieces_{0};
  std::atomic<std::uint64_t> bytes_{0};
  std::atomic<std::uint64_t> batches_{0};
};

}  // namespace

std::unique_ptr<copy_engine> make_host_copy_engine() {
  return std::make_unique<host_copy_engine>();
}

}  // namespace headrace
