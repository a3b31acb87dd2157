#pragma once

#include <headrace/base/errc.hpp>
#include <headrace/io/byte_stream.hpp>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

namespace headrace::test {

/// What the peer of a `scripted_stream` says, and what it has heard. Shared, so that a test can
/// look at it while the connection owns the stream.
struct stream_script {
  struct piece {
    std::string bytes;
    std::error_code failure;  ///< In place of bytes.
  };

  std::deque<piece>
      answers;  ///< One receive gives at most one of them; after the last one the peer has closed.
  std::size_t piece_limit = SIZE_MAX;  ///< One receive gives no more than this.
  std::error_code send_failure;
  bool stale = false;

  std::string sent;
  std::size_t receives = 0;
  std::vector<std::size_t> asked;         ///< The room that each receive had.
  std::vector<const void*> destinations;  ///< Where the first vector of each receive pointed.
  bool destroyed = false;

  stream_script& says(std::string bytes) {
    answers.push_back({std::move(bytes), {}});
    return *this;
  }
  stream_script& fails(std::error_code code) {
    answers.push_back({{}, code});
    return *this;
  }
};

/// A connection in memory: every byte arrives when and in which pieces the script says. Nothing
/// ever waits.
class scripted_stream final : public byte_stream {
 public:
  explicit scripted_stream(std::shared_ptr<stream_script> script) : script_(std::move(script)) {}
  ~scripted_stream() override { script_->destroyed = true; }

  task<io_result<std::size_t>> receive(buffer_sequence destination) override {
    ++script_->receives;
    script_->asked.push_back(total_size(destination));
    script_->destinations.push_back(destination.front().iov_base);
    const environment given = co_await current_environment();
    if (given.stop.stop_requested()) co_return failure{make_error_code(errc::cancelled)};
    if (script_->answers.empty()) co_return std::size_t{0};
    auto& piece = script_->answers.front();
    if (piece.failure) {
      const std::error_code code = piece.failure;
      script_->answers.pop_front();
      co_return failure{code};
    }
    std::size_t taken = 0;
    const std::size_t most = std::min(piece.bytes.size(), script_->piece_limit);
    for (const iovec& into : destination) {
      const std::size_t size = std::min(into.iov_len, most - taken);
      std::memcpy(into.iov_base, piece.bytes.data() + taken, size);
      taken += size;
    }
    piece.bytes.erase(0, taken);
    if (piece.bytes.empty()) script_->answers.pop_front();
    co_return taken;
  }

  task<io_result<void>> send(std::span<const std::byte> bytes) override {
    if (script_->send_failure) co_return failure{script_->send_failure};
    script_->sent.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    co_return io_result<void>{};
  }

  [[nodiscard]] const std::string& peer() const noexcept override { return peer_; }
  [[nodiscard]] bool stale() const noexcept override { return script_->stale; }

 private:
  std::shared_ptr<stream_script> script_;
  std::string peer_ = "192.0.2.7:80";
};

}  // namespace headrace::test
