#include <support/scripted_server.hpp>

#include <headrace/base/assert.hpp>
#include <headrace/base/error.hpp>
#include <headrace/coro/async_condition.hpp>
#include <headrace/coro/async_scope.hpp>
#include <headrace/coro/with.hpp>
#include <headrace/io/io_context.hpp>
#include <headrace/io/socket.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <condition_variable>
#include <cstdlib>
#include <future>
#include <mutex>
#include <set>
#include <span>
#include <thread>
#include <utility>

namespace headrace::test {
namespace {

constexpr std::chrono::seconds patience{20};

// A proxy of the user's would be asked for servers on this machine's loopback. Before any thread.
[[maybe_unused]] const bool without_proxies = [] {
  for (const char* name : {"http_proxy", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"})
    ::unsetenv(name);
  return true;
}();

bool same_name(std::string_view left, std::string_view right) {
  const auto lower = [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  };
  return std::equal(left.begin(), left.end(), right.begin(), right.end(),
                    [lower](char a, char b) { return lower(a) == lower(b); });
}

std::optional<std::uint64_t> number_of(std::string_view text) {
  std::uint64_t number = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), number);
  if (text.empty() || read.ec != std::errc{} || read.ptr != text.data() + text.size())
    return std::nullopt;
  return number;
}

seen_request parse(std::string_view head) {
  seen_request request;
  const auto line_end = head.find("\r\n");
  const auto line = head.substr(0, line_end);
  const auto first = line.find(' ');
  const auto second = line.rfind(' ');
  request.method = line.substr(0, first);
  if (second != std::string_view::npos && second > first)
    request.target = line.substr(first + 1, second - first - 1);
  auto rest = head.substr(line_end + 2);
  while (!rest.empty()) {
    const auto end = std::min(rest.find("\r\n"), rest.size());
    const auto field = rest.substr(0, end);
    const auto colon = field.find(':');
    if (colon != std::string_view::npos) {
      auto value = field.substr(colon + 1);
      value.remove_prefix(std::min(value.find_first_not_of(' '), value.size()));
      request.fields.emplace_back(field.substr(0, colon), value);
    }
    rest.remove_prefix(std::min(end + 2, rest.size()));
  }
  return request;
}

std::string_view reason_of(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 206:
      return "Partial Content";
    case 404:
      return "Not Found";
    case 412:
      return "Precondition Failed";
    case 416:
      return "Range Not Satisfiable";
    case 503:
      return "Service Unavailable";
    default:
      return "Status";
  }
}

}  // namespace

std::optional<std::string> seen_request::field(std::string_view name) const {
  for (const auto& [found, value] : fields) {
    if (same_name(found, name)) return value;
  }
  return std::nullopt;
}

std::optional<byte_range> seen_request::range() const {
  const auto value = field("Range");
  if (!value || !value->starts_with("bytes=")) return std::nullopt;
  const auto text = std::string_view(*value).substr(6);
  const auto dash = text.find('-');
  if (dash == std::string_view::npos) return std::nullopt;
  const auto begin = number_of(text.substr(0, dash));
  const auto last = number_of(text.substr(dash + 1));
  if (!begin || !last || *last < *begin) return std::nullopt;
  return byte_range{*begin, *last - *begin + 1};
}

std::string seen_request::path() const { return target.substr(0, target.find('?')); }

std::string answer(int status, const http_fields& fields, std::string_view body) {
  std::string text =
      "HTTP/1.1 " + std::to_string(status) + ' ' + std::string(reason_of(status)) + "\r\n";
  for (const auto& [name, value] : fields)
    text.append(name).append(": ").append(value).append("\r\n");
  text.append("Content-Length: ")
      .append(std::to_string(body.size()))
      .append("\r\n\r\n")
      .append(body);
  return text;
}

std::string answer_with(std::string_view object, const seen_request& request,
                        std::string_view etag) {
  http_fields fields{{"ETag", std::string(etag)}, {"Accept-Ranges", "bytes"}};
  const auto range = request.range();
  if (!range) return answer(200, fields, object);
  const std::string total = std::to_string(object.size());
  if (range->begin >= object.size()) {
    fields.emplace_back("Content-Range", "bytes */" + total);
    return answer(416, fields);
  }
  const auto part = object.substr(range->begin, range->size);
  const auto last = range->begin + part.size() - 1;
  fields.emplace_back("Content-Range", "bytes " + std::to_string(range->begin) + '-' +
                                           std::to_string(last) + '/' + total);
  return answer(206, fields, part);
}

class scripted_server::state {
 public:
  /// What has happened so far.
  struct history {
    std::vector<seen_request> requests;
    std::vector<std::string> tls_failures;
    std::size_t connections = 0;
    std::size_t open = 0;
  };

  state(script answers, options given) : answers_(std::move(answers)), options_(std::move(given)) {
    if (options_.tls) tls_.emplace(*options_.tls);
    std::promise<std::uint16_t> ready;
    auto port = ready.get_future();
    thread_ = std::thread(&state::work, this, &ready);
    port_ = port.get();
  }

  ~state() {
    stop_.request_stop();
    thread_.join();
  }

  [[nodiscard]] std::uint16_t port() const noexcept { return port_; }
  [[nodiscard]] const options& given() const noexcept { return options_; }

  void signal(std::string name) {
    async_condition::wake_list woken;
    const std::lock_guard lock(mutex_);
    signals_.insert(std::move(name));
    signalled_.notify_all(woken);
  }

  template <class Function>
  auto read(Function function) const {
    const std::lock_guard lock(mutex_);
    return function(history_);
  }

  template <class Condition>
  [[nodiscard]] bool wait_until(Condition condition) const {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, patience, [&] { return condition(history_); });
  }

 private:
  struct connection {
    socket peer;
    std::unique_ptr<tls_server_end> tls;  ///< Null without.
    std::string buffered;
    std::size_t index;
    std::size_t turn = 0;
    bool open = true;
  };

  void work(std::promise<std::uint16_t>* ready) {
    try {
      io_context loop({.backend = io_backend_from_environment().value()});
      const auto address = endpoint::from_literal(options_.address, 0);
      HEADRACE_ASSERT(address);
      auto listener = acceptor::listen(loop, *address);
      if (!listener) throw std::system_error(listener.error());
      async_scope scope(stop_.get_token());
      scope.spawn(loop, serve(this, &loop, &*listener));
      ready->set_value(listener->local().port());
      loop.run();
    } catch (...) {
      ready->set_exception(std::current_exception());
    }
  }

  static task<void> serve(state* self, io_context* loop, acceptor* listener) {
    const environment given = co_await current_environment();
    async_scope connections(given.stop);
    while (true) {
      auto accepted = co_await listener->accept();
      if (!accepted) break;
      std::size_t index = 0;
      {
        const std::lock_guard lock(self->mutex_);
        index = self->history_.connections++;
        ++self->history_.open;
      }
      self->changed_.notify_all();
      connections.spawn(*loop, serve_one(self, std::move(*accepted), index));
    }
    co_await connections.join();
    loop->stop();
  }

  static task<void> serve_one(state* self, socket accepted, std::size_t index) {
    try {
      co_await converse(self, std::move(accepted), index);
    } catch (const error& stopped) {
      HEADRACE_ASSERT(stopped.kind() == errc::cancelled);
    }
    const std::lock_guard lock(self->mutex_);
    --self->history_.open;
    self->changed_.notify_all();
  }

  static task<void> converse(state* self, socket accepted, std::size_t index) {
    connection client{.peer = std::move(accepted), .tls = {}, .buffered = {}, .index = index};
    if (self->tls_) {
      client.tls = std::make_unique<tls_server_end>(*self->tls_);
      bool more = true;
      while (more && !client.tls->connected()) more = co_await self->receive_more(&client);
      if (!more) co_return;
    }
    if (self->options_.on_accept) co_await self->run(&client, self->options_.on_accept(index));
    while (client.open) {
      auto request = co_await self->receive_request(&client);
      if (!request) break;
      if (client.tls != nullptr) {
        request->tls_version = client.tls->version();
        request->server_name = client.tls->server_name();
        request->client_name = client.tls->client_name();
        request->resumed = client.tls->resumed();
      }
      request->connection = index;
      request->turn = client.turn++;
      {
        const std::lock_guard lock(self->mutex_);
        request->number = self->history_.requests.size();
        self->history_.requests.push_back(*request);
      }
      self->changed_.notify_all();
      auto reaction = self->answers_(*request);
      co_await self->run(&client, std::move(reaction));
    }
  }

  task<std::optional<seen_request>> receive_request(connection* client) {
    std::size_t end = std::string::npos;
    while ((end = client->buffered.find("\r\n\r\n")) == std::string::npos) {
      const bool more = co_await receive_more(client);
      if (!more) co_return std::nullopt;
    }
    auto request = parse(std::string_view(client->buffered).substr(0, end + 2));
    client->buffered.erase(0, end + 4);
    const auto length = request.field("Content-Length");
    const std::size_t size = length ? number_of(*length).value_or(0) : 0;
    while (client->buffered.size() < size) {
      const bool more = co_await receive_more(client);
      if (!more) co_return std::nullopt;
    }
    request.body = client->buffered.substr(0, size);
    client->buffered.erase(0, size);
    co_return std::move(request);
  }

  /// More of what the client says, or, under TLS, at least of what it sends.
  task<bool> receive_more(connection* client) {
    std::array<char, 4096> bytes{};
    const std::array<iovec, 1> into{iovec{bytes.data(), bytes.size()}};
    auto received = co_await client->peer.receive(into);
    if (!received || *received == 0) co_return false;
    if (client->tls == nullptr) {
      client->buffered.append(bytes.data(), *received);
      co_return true;
    }
    client->tls->feed({bytes.data(), *received});
    client->buffered += client->tls->read();
    // Also what tells the client why.
    const std::string answers = client->tls->take();
    auto sent = co_await client->peer.send_all(std::as_bytes(std::span(answers)));
    const auto failed = client->tls->failure();
    if (!failed.empty()) {
      const std::lock_guard lock(mutex_);
      history_.tls_failures.push_back(failed);
    }
    co_return sent&& failed.empty() && !client->tls->finished();
  }

  task<void> run(connection* client, steps script) {
    for (step& next : script) {
      if (!client->open) break;
      if (auto* sent = std::get_if<action::send>(&next)) {
        co_await send(client, sent->bytes);
      } else if (auto* dripped = std::get_if<action::drip>(&next)) {
        for (std::size_t at = 0; at < dripped->bytes.size() && client->open; at += dripped->piece) {
          if (at > 0 && dripped->pause.count() > 0) co_await sleep_for(dripped->pause);
          co_await send(client, std::string_view(dripped->bytes).substr(at, dripped->piece));
        }
      } else if (auto* awaited = std::get_if<action::wait_for>(&next)) {
        const bool signalled = co_await with_timeout(patience, wait_for(awaited->name));
        if (!signalled) end(client, true);
      } else if (auto* signalled = std::get_if<action::signal>(&next)) {
        signal(signalled->name);
      } else if (std::holds_alternative<action::stall>(next)) {
        bool more = true;
        while (more) more = co_await receive_more(client);
        end(client, false);
      } else if (std::holds_alternative<action::half_close>(next)) {
        co_await say_goodbye(client);
        client->peer.shutdown_send();
      } else {
        if (std::holds_alternative<action::close>(next)) co_await say_goodbye(client);
        end(client, std::holds_alternative<action::reset>(next));
      }
    }
  }

  static task<void> say_goodbye(connection* client) {
    if (client->tls == nullptr) co_return;
    client->tls->close_notify();
    co_await send(client, {});
  }

  static task<void> send(connection* client, std::string_view bytes) {
    std::string encrypted;
    if (client->tls != nullptr) {
      client->tls->write(bytes);
      encrypted = client->tls->take();
      bytes = encrypted;
    }
    auto sent = co_await client->peer.send_all(std::as_bytes(std::span(bytes)));
    if (!sent) end(client, false);
  }

  static void end(connection* client, bool reset) {
    client->open = false;
    if (reset) {
      client->peer.reset();
    } else {
      client->peer = socket();
    }
  }

  task<bool> wait_for(std::string name) {
    std::unique_lock lock(mutex_);
    while (!signals_.contains(name)) {
      const bool notified = co_await signalled_.wait(lock);
      if (!notified) co_return false;
    }
    co_return true;
  }

  const script answers_;
  const options options_;
  std::optional<tls_server> tls_;
  std::uint16_t port_ = 0;
  std::stop_source stop_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  async_condition signalled_;
  std::set<std::string> signals_;
  history history_;
  std::thread thread_;
};

scripted_server::scripted_server(script answers, options given)
    : state_(std::make_unique<state>(std::move(answers), std::move(given))) {}
scripted_server::~scripted_server() = default;

std::uint16_t scripted_server::port() const noexcept { return state_->port(); }

http_origin scripted_server::origin() const {
  return {state_->given().tls ? "https" : "http", state_->given().address, port()};
}

std::string scripted_server::url(std::string_view path) const {
  return origin().to_string() + std::string(path);
}

std::vector<seen_request> scripted_server::requests() const {
  return state_->read([](const auto& now) { return now.requests; });
}

std::size_t scripted_server::connections() const {
  return state_->read([](const auto& now) { return now.connections; });
}

std::size_t scripted_server::open_connections() const {
  return state_->read([](const auto& now) { return now.open; });
}

std::vector<std::string> scripted_server::tls_failures() const {
  return state_->read([](const auto& now) { return now.tls_failures; });
}

void scripted_server::signal(std::string name) { state_->signal(std::move(name)); }

bool scripted_server::wait_for_requests(std::size_t count) const {
  return state_->wait_until([count](const auto& now) { return now.requests.size() >= count; });
}

bool scripted_server::wait_for_connections(std::size_t count) const {
  return state_->wait_until([count](const auto& now) { return now.connections >= count; });
}

bool scripted_server::wait_for_open_connections(std::size_t at_most) const {
  return state_->wait_until([at_most](const auto& now) { return now.open <= at_most; });
}

}  // namespace headrace::test
