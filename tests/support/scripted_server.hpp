#pragma once

#include <headrace/base/byte_range.hpp>
#include <headrace/http/http_origin.hpp>
#include <headrace/http/http_request.hpp>

#include <support/tls_server.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace headrace::test {

/// A request as the server received it.
struct seen_request {
  std::size_t number = 0;      ///< Over all connections, from 0, in the order of arrival.
  std::size_t connection = 0;  ///< Which connection it came on, from 0, in the order of acceptance.
  std::size_t turn = 0;        ///< How many requests came on that connection before it.
  std::string method;
  std::string target;
  http_fields fields;
  std::string body;

  // With TLS.
  std::string tls_version;  ///< `TLSv1.3`; empty without.
  std::string server_name;  ///< SNI.
  std::string client_name;  ///< The common name of the client's certificate.
  bool resumed = false;

  /// The first field of this name, in any case.
  [[nodiscard]] std::optional<std::string> field(std::string_view name) const;

  /// What `Range: bytes=a-b` asks for; nothing for every other form.
  [[nodiscard]] std::optional<byte_range> range() const;

  /// The target without its query.
  [[nodiscard]] std::string path() const;
};

/// What a server does, step by step. Steps after one that ends the connection are not taken.
namespace action {

/// Sends these bytes.
struct send {
  std::string bytes;
};

/// Sends these bytes `piece` at a time, each in a packet of its own, with a pause in between. (Only
/// a stall limit is worth a pause.)
struct drip {
  std::string bytes;
  std::size_t piece = 1;
  std::chrono::milliseconds pause{0};
};

/// Waits until the test, or another connection, has signalled `name`. Gives up, and resets, after
/// 20 s.
struct wait_for {
  std::string name;
};

/// Signals `name`.
struct signal {
  std::string name;
};

/// Says nothing more until the client closes; then closes.
struct stall {};

/// Closes the connection: orderly, or with a reset. With unread bytes in the socket, the kernel
/// makes a reset of either. `cut` is a close without TLS's close_notify.
struct close {};
struct cut {};
struct reset {};

/// Ends the sending side and goes on listening.
struct half_close {};

}  // namespace action

using step =
    std::variant<action::send, action::drip, action::wait_for, action::signal, action::stall,
                 action::close, action::cut, action::reset, action::half_close>;
using steps = std::vector<step>;

/// An answer as a well-behaved server writes it, with its Content-Length.
[[nodiscard]] std::string answer(int status, const http_fields& fields = {},
                                 std::string_view body = {});

/// The answer of a well-behaved object store to `request` for `object`: 206 with Content-Range, 200
/// without Range, 416 beyond the end.
[[nodiscard]] std::string answer_with(std::string_view object, const seen_request& request,
                                      std::string_view etag = "\"v1\"");

/// A server on loopback, on a thread and a loop of its own (backend: HEADRACE_IO), that controls
/// each byte.
///
///     scripted_server server([](const seen_request& request) -> steps {
///       if (request.number == 0) return {action::send{"HTTP/1.1 206 Partial Content\r\n…"},
///       action::reset{}}; return {action::send{answer_with(object, request)}};
///     });
///     … server.origin() …
///     CHECK(server.requests().at(1).field("If-Match") == "\"v1\"");
///
/// The script is called on the server's thread, one call at a time; what it captures must outlive
/// the server. The destructor ends every connection, whatever its script waits for, and joins.
/// Threads: every member may be called from any thread.
class scripted_server {
 public:
  using script = std::function<steps(const seen_request&)>;

  struct options {
    std::function<steps(std::size_t connection)>
        on_accept;                      ///< Before the first request of a connection is read.
    std::string address = "127.0.0.1";  ///< Where it listens: a literal address.
    std::optional<tls_server_options> tls = std::nullopt;  ///< Then `on_accept` comes after the
                                                           ///< handshake.
  };

  explicit scripted_server(script answers) : scripted_server(std::move(answers), options{}) {}
  scripted_server(script answers, options given);
  ~scripted_server();
  scripted_server(const scripted_server&) = delete;
  scripted_server& operator=(const scripted_server&) = delete;

  [[nodiscard]] std::uint16_t port() const noexcept;
  [[nodiscard]] http_origin origin() const;
  [[nodiscard]] std::string url(std::string_view path = "/") const;

  /// What was asked so far, in order.
  [[nodiscard]] std::vector<seen_request> requests() const;

  /// How many connections were accepted, and how many of them are open now.
  [[nodiscard]] std::size_t connections() const;
  [[nodiscard]] std::size_t open_connections() const;

  /// What went wrong in TLS, as the server saw it: alerts of clients among it.
  [[nodiscard]] std::vector<std::string> tls_failures() const;

  /// Lets every `wait_for` of this name go on, those to come included.
  void signal(std::string name);

  /// Block the caller until so many requests have come, connections have been accepted, or at most
  /// so many are open. False after 20 s.
  [[nodiscard]] bool wait_for_requests(std::size_t count) const;
  [[nodiscard]] bool wait_for_connections(std::size_t count) const;
  [[nodiscard]] bool wait_for_open_connections(std::size_t at_most) const;

 private:
  class state;
  std::unique_ptr<state> state_;
};

}  // namespace headrace::test
