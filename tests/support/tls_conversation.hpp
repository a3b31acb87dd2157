#pragma once

#include <headrace/base/errc.hpp>
#include <headrace/coro/async_condition.hpp>
#include <headrace/io/byte_stream.hpp>

#include <support/tls_server.hpp>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

namespace headrace::test {

/// A server's side of a TLS connection in memory, and in which pieces its bytes arrive. Shared, so
/// that a test can look at it, and go on with it, while a connection owns the stream.
struct tls_conversation {
  explicit tls_conversation(const tls_server& server) : end(server) {}

  tls_server_end end;
  std::function<void(tls_conversation&, std::string)> answer;  ///< Called with what was said.
  std::size_t piece = SIZE_MAX;         ///< One receive gives no more than this...
  std::size_t first_piece = 0;          ///< ...and the next one this, where it is not 0.
  bool tries = true;                    ///< Whether the stream has `try_receive`.
  bool mute = false;                    ///< The server hears, and says nothing.
  bool closed = false;                  ///< After what is on its way, the stream ends.
  std::size_t silent_after = SIZE_MAX;  ///< After so many waits nothing comes any more.
  std::error_code failure;              ///< Or fails.
  std::error_code send_failure;

  std::string on_its_way;  ///< To the client.
  std::size_t received = 0;
  std::function<void(std::size_t)> on_wait;  ///< Before the client waits, with how often it has.
  std::size_t waits = 0;                     ///< How often the client waited for more.
  bool destroyed = false;

  /// Puts what the server wants to say on its way.
  void push() {
    auto said = end.take();
    if (!mute) on_its_way += said;
  }

  void heard(std::string_view bytes) {
    end.feed(bytes);
    auto said = end.read();
    if (!said.empty() && answer) answer(*this, std::move(said));
    push();
  }

  bool ready() const { return waits <= silent_after && (!on_its_way.empty() || closed || failure); }
};

/// The client's transport to it. Where nothing is on its way, a receive waits until it is stopped.
class conversation_stream final : public byte_stream {
 public:
  explicit conversation_stream(std::shared_ptr<tls_conversation> with) : with_(std::move(with)) {}
  ~conversation_stream() override { with_->destroyed = true; }

  task<io_result<std::size_t>> receive(buffer_sequence destination) override {
    auto ready = co_await wait();
    if (!ready) co_return failure{ready.error()};
    co_return take(destination);
  }

  io_result<std::size_t> try_receive(buffer_sequence destination) override {
    if (!with_->tries) return byte_stream::try_receive(destination);
    if (!with_->ready()) return failure{std::error_code(EAGAIN, std::system_category())};
    return take(destination);
  }

  task<io_result<void>> send(std::span<const std::byte> bytes) override {
    if (with_->send_failure) co_return failure{with_->send_failure};
    with_->heard({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    co_return io_result<void>{};
  }

  [[nodiscard]] const std::string& peer() const noexcept override { return peer_; }
  [[nodiscard]] bool stale() const noexcept override { return with_->ready(); }

 private:
  task<io_result<void>> wait() {
    ++with_->waits;
    if (with_->on_wait) with_->on_wait(with_->waits);
    const bool stopped = co_await stop_requested();
    if (stopped) co_return failure{make_error_code(errc::cancelled)};
    if (with_->ready()) co_return io_result<void>{};
    std::unique_lock lock(mutex_);
    [[maybe_unused]] const bool notified = co_await never_.wait(lock);
    co_return failure{make_error_code(errc::cancelled)};
  }

  io_result<std::size_t> take(buffer_sequence destination) {
    if (with_->on_its_way.empty() && with_->failure) return failure{with_->failure};
    std::size_t most = with_->piece;
    if (with_->first_piece > 0) most = std::exchange(with_->first_piece, 0);
    most = std::min(most, with_->on_its_way.size());
    std::size_t taken = 0;
    for (const iovec& into : destination) {
      const std::size_t size = std::min(into.iov_len, most - taken);
      std::memcpy(into.iov_base, with_->on_its_way.data() + taken, size);
      taken += size;
    }
    with_->on_its_way.erase(0, taken);
    with_->received += taken;
    return taken;
  }

  std::shared_ptr<tls_conversation> with_;
  std::mutex mutex_;
  async_condition never_;
  std::string peer_ = "192.0.2.7:443";
};

}  // namespace headrace::test
