#include <headrace/io/byte_stream.hpp>

#include <headrace/coro/with.hpp>

#include <sys/socket.h>

#include <cerrno>

namespace headrace {
namespace {

class tcp_stream final : public byte_stream {
 public:
  explicit tcp_stream(socket connected)
      : socket_(std::move(connected)), peer_(socket_.peer().to_string()) {}

  task<io_result<std::size_t>> receive(buffer_sequence destination) override {
    auto received = co_await socket_.receive(destination);
    co_return received;
  }

  task<io_result<void>> send(std::span<const std::byte> bytes) override {
    return socket_.send_all(bytes);
  }

  io_result<std::size_t> try_receive(buffer_sequence destination) override {
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(destination.data());
    message.msg_iovlen = destination.size();
    const auto count = ::recvmsg(socket_.native(), &message, MSG_DONTWAIT);
    if (count < 0) return failure{std::error_code(errno, std::system_category())};
    return static_cast<std::size_t>(count);
  }

  [[nodiscard]] const std::string& peer() const noexcept override { return peer_; }

  [[nodiscard]] bool stale() const noexcept override {
    std::byte first{};
    const auto count = ::recv(socket_.native(), &first, 1, MSG_PEEK | MSG_DONTWAIT);
    return count >= 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
  }

 private:
  socket socket_;
  std::string peer_;
};

task<io_result<std::unique_ptr<byte_stream>>> connect_one(io_context& context, endpoint address) {
  auto opened = socket::open(context, address.family());
  if (!opened) co_return failure{opened.error()};
  auto connected = co_await opened->connect(address);
  if (!connected) co_return failure{connected.error()};
  co_return make_tcp_stream(std::move(*opened));
}

/// Like with_timeout, for results: a stop that the timer made is ETIMEDOUT.
task<io_result<std::unique_ptr<byte_stream>>> connect_within(io_context& context, endpoint address,
                                                             std::chrono::nanoseconds limit) {
  auto connecting = detail::limited(context, limit, connect_one(context, address));
  auto outcome = co_await std::move(connecting);
  if (!outcome.done && outcome.late)
    co_return failure{std::error_code(ETIMEDOUT, std::system_category())};
  co_return std::move(outcome.done);
}

}  // namespace

io_result<std::size_t> byte_stream::try_receive(buffer_sequence /*destination*/) {
  return failure{std::error_code(EOPNOTSUPP, std::system_category())};
}

std::unique_ptr<byte_stream> make_tcp_stream(socket connected) {
  return std::make_unique<tcp_stream>(std::move(connected));
}

task<io_result<std::unique_ptr<byte_stream>>> connect_tcp(io_context& context,
                                                          std::vector<endpoint> addresses,
                                                          std::chrono::nanoseconds limit) {
  std::error_code last(EADDRNOTAVAIL, std::system_category());
  for (const endpoint& address : addresses) {
    auto connected = co_await connect_within(context, address, limit);
    if (connected) co_return connected;
    last = connected.error();
    if (kind_of(last) == errc::cancelled) break;
  }
  co_return failure{last};
}

}  // namespace headrace
