#include <headrace/io/socket.hpp>

#include "io/engine.hpp"

#include <headrace/io/inherited.hpp>

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>

namespace headrace {
namespace {

std::error_code last_error() { return {errno, std::system_category()}; }

void set_option(int number, int level, int name, int value) noexcept {
  // Options are hints here: a socket without them works.
  static_cast<void>(::setsockopt(number, level, name, &value, sizeof value));
}

std::unique_ptr<detail::descriptor> make_descriptor(int number) {
  auto made = std::make_unique<detail::descriptor>();
  made->number = number;
  detail::inherited_descriptors::add(number);
  return made;
}

endpoint address_of(int number, int (*query)(int, sockaddr*, socklen_t*)) {
  sockaddr_storage storage{};
  socklen_t size = sizeof storage;
  auto* const address = reinterpret_cast<sockaddr*>(&storage);
  if (query(number, address, &size) != 0) return {};
  return {address, size};
}

}  // namespace

socket::socket() noexcept = default;
socket::socket(socket&& other) noexcept = default;

socket& socket::operator=(socket&& other) noexcept {
  if (this != &other) {
    close();
    context_ = other.context_;
    descriptor_ = std::move(other.descriptor_);
  }
  return *this;
}

socket::~socket() { close(); }

void socket::close() noexcept {
  if (descriptor_ != nullptr) context_->engine().release(std::move(descriptor_));
}

io_result<socket> socket::open(io_context& context, int family) {
  const int number = ::socket(family, SOCK_STREAM | SOCK_CLOEXEC | context.socket_flags(), 0);
  if (number < 0) return failure{last_error()};
  return adopt(context, number);
}

socket socket::adopt(io_context& context, int descriptor) {
  // However it was made: io_uring would fail with EAGAIN on a non-blocking one, and epoll would
  // block on the other.
  const int flags = ::fcntl(descriptor, F_GETFL);
  const int wanted =
      (context.socket_flags() & SOCK_NONBLOCK) != 0 ? flags | O_NONBLOCK : flags & ~O_NONBLOCK;
  if (flags >= 0 && flags != wanted) static_cast<void>(::fcntl(descriptor, F_SETFL, wanted));
  set_option(descriptor, IPPROTO_TCP, TCP_NODELAY, 1);
  socket adopted;
  adopted.context_ = &context;
  adopted.descriptor_ = make_descriptor(descriptor);
  return adopted;
}

io_operation<void> socket::connect(const endpoint& address) {
  return {*context_, descriptor_.get(), detail::operation_kind::connect, {.address = &address}};
}

io_operation<std::size_t> socket::receive(buffer_sequence destination) {
  return {*context_, descriptor_.get(), detail::operation_kind::receive, {.buffers = destination}};
}

io_operation<std::size_t> socket::send(buffer_sequence source) {
  return {*context_, descriptor_.get(), detail::operation_kind::send, {.buffers = source}};
}

task<io_result<void>> socket::send_all(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    // The kernel only reads what it is given to send.
    const iovec rest{const_cast<std::byte*>(bytes.data()), bytes.size()};
    auto sent = co_await send({&rest, 1});
    if (!sent) co_return failure{sent.error()};
    bytes = bytes.subspan(*sent);
  }
  co_return io_result<void>();
}

void socket::shutdown_send() noexcept { static_cast<void>(::shutdown(native(), SHUT_WR)); }

void socket::shutdown() noexcept { static_cast<void>(::shutdown(native(), SHUT_RDWR)); }

void socket::reset() noexcept {
  const linger abort{.l_onoff = 1, .l_linger = 0};
  static_cast<void>(::setsockopt(native(), SOL_SOCKET, SO_LINGER, &abort, sizeof abort));
  close();
}

int socket::native() const noexcept { return descriptor_ != nullptr ? descriptor_->number : -1; }

endpoint socket::peer() const { return address_of(native(), &::getpeername); }

acceptor::acceptor(io_context& context, std::unique_ptr<detail::descriptor> descriptor) noexcept
    : context_(&context), descriptor_(std::move(descriptor)) {}

acceptor::acceptor(acceptor&& other) noexcept = default;

acceptor& acceptor::operator=(acceptor&& other) noexcept {
  if (this != &other) {
    if (descriptor_ != nullptr) context_->engine().release(std::move(descriptor_));
    context_ = other.context_;
    descriptor_ = std::move(other.descriptor_);
  }
  return *this;
}

acceptor::~acceptor() {
  if (descriptor_ != nullptr) context_->engine().release(std::move(descriptor_));
}

io_result<acceptor> acceptor::listen(io_context& context, const endpoint& address) {
  constexpr int backlog = 1024;
  const int number =
      ::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | context.socket_flags(), 0);
  if (number < 0) return failure{last_error()};
  auto made = make_descriptor(number);
  set_option(number, SOL_SOCKET, SO_REUSEADDR, 1);
  if (::bind(number, address.data(), address.size()) != 0 || ::listen(number, backlog) != 0) {
    const auto failed = last_error();
    context.engine().release(std::move(made));
    return failure{failed};
  }
  return acceptor(context, std::move(made));
}

task<io_result<socket>> acceptor::accept() {
  io_operation<int> operation(*context_, descriptor_.get(), detail::operation_kind::accept, {});
  auto accepted = co_await operation;
  if (!accepted) co_return failure{accepted.error()};
  co_return socket::adopt(*context_, *accepted);
}

endpoint acceptor::local() const { return address_of(descriptor_->number, &::getsockname); }

}  // namespace headrace
