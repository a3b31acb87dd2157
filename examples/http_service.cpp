// A service on Boost.Asio that answers questions about its weights and swaps them while it answers.
//
//     http_service s3://bucket/model [PORT]
//
//     GET  /weights/NAME            shape, dtype and SHA-256 of a tensor, and the model's version
//     GET  /model                   where the model came from, its version, tensors and bytes
//     POST /load {"uri": "s3://…"}  loads another model and swaps, once all of it is there
//
// One thread runs everything here. While a model loads, its bytes arrive on the threads of the
// runtime and digests are taken on a thread of their own; the one that answers only moves pointers.
// So there is no lock, and no answer waits for a load. A model that cannot be loaded leaves the old
// one in place. Whoever may send requests may have any URI loaded: it listens on loopback alone.

#include <headrace/asio.hpp>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <boost/json.hpp>
#include <boost/url.hpp>
#include <openssl/evp.h>

#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <exception>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
namespace json = boost::json;
using asio::use_awaitable;
using asio::ip::tcp;

namespace {

using request = http::request<http::string_body>;
using response = http::response<http::string_body>;

struct weight {
  headrace::tensor tensor;
  std::string digest;
};

/// A model in memory: complete, and never changed.
struct loaded_model {
  std::string uri;
  std::uint64_t version = 0;
  std::size_t bytes = 0;
  std::map<std::string, weight, std::less<>> weights;
};

/// What the service knows. Threads: that of the context alone.
struct service {
  headrace::runtime& engine;
  asio::io_context& context;
  asio::thread_pool& helpers;  ///< For what takes time and needs nobody's attention.
  std::shared_ptr<const loaded_model> current = nullptr;
  std::uint64_t last_version = 0;
  bool loading = false;
};

// --- Loading ------------------------------------------------------------------------------------

std::string sha256(std::span<const std::byte> bytes) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned size = 0;
  if (EVP_Digest(bytes.data(), bytes.size(), digest, &size, EVP_sha256(), nullptr) != 1) {
    throw std::runtime_error("SHA-256 could not be taken");
  }
  constexpr std::string_view digits = "0123456789abcdef";
  std::string text;
  for (const unsigned char byte : std::span(digest, size)) {
    text += digits[byte >> 4];
    text += digits[byte & 15];
  }
  return text;
}

// Runs on the helpers; the tensor is its own until it gives it back.
asio::awaitable<weight> with_digest(headrace::tensor arrived) {
  weight made{std::move(arrived), {}};
  made.digest = sha256(std::as_const(made.tensor).bytes());
  co_return made;
}

/// Loads the model at `uri` beside the one that answers, then swaps.
asio::awaitable<void> load(service& on, std::string uri) {
  auto model = co_await headrace::asio::async_open(on.engine, uri, {}, use_awaitable);
  auto next = std::make_shared<loaded_model>();
  auto tensors = model.stream();
  while (auto* arrived = co_await headrace::asio::async_next(tensors, use_awaitable)) {
    std::string name(arrived->name());
    auto digesting = asio::co_spawn(on.helpers, with_digest(std::move(*arrived)), use_awaitable);
    weight made = co_await std::move(digesting);
    next->bytes += made.tensor.bytes().size();
    next->weights.emplace(std::move(name), std::move(made));
  }
  next->uri = model.uri();
  next->version = ++on.last_version;
  std::shared_ptr<const loaded_model> old = std::exchange(on.current, std::move(next));
  // Giving gigabytes back to the system takes its time, too.
  asio::post(on.helpers, [old = std::move(old)]() mutable { old.reset(); });
}

struct load_outcome {
  http::status status = http::status::ok;
  std::string kind;
  std::string message;
};

asio::awaitable<load_outcome> try_load(service& on, std::string uri) {
  try {
    co_await load(on, std::move(uri));
  } catch (const headrace::error& failed) {
    const bool asked_wrongly = failed.kind() == headrace::errc::invalid_request ||
                               failed.kind() == headrace::errc::not_found ||
                               failed.kind() == headrace::errc::unsupported;
    co_return load_outcome{asked_wrongly ? http::status::bad_request : http::status::bad_gateway,
                           std::string(to_string(failed.kind())), failed.message()};
  } catch (const std::exception& failed) {
    co_return load_outcome{http::status::internal_server_error, "internal", failed.what()};
  }
  co_return load_outcome{};
}

// --- Answering ----------------------------------------------------------------------------------

response answer_with(const request& asked, http::status status, const json::value& body) {
  response answer(status, asked.version());
  answer.set(http::field::content_type, "application/json");
  answer.keep_alive(asked.keep_alive());
  answer.body() = json::serialize(body) + "\n";
  answer.prepare_payload();
  return answer;
}

response refuse(const request& asked, http::status status, std::string_view why) {
  return answer_with(asked, status, json::object{{"error", why}});
}

json::object describe(const loaded_model& model) {
  return {{"uri", model.uri},
          {"version", model.version},
          {"tensors", model.weights.size()},
          {"bytes", model.bytes}};
}

json::object describe(const loaded_model& model, const std::string& name, const weight& found) {
  json::array shape;
  for (const std::uint64_t extent : found.tensor.shape()) shape.emplace_back(extent);
  return {{"name", name},
          {"dtype", to_string(found.tensor.dtype())},
          {"shape", std::move(shape)},
          {"sha256", found.digest},
          {"version", model.version}};
}

response answer_get(const service& on, const request& asked, std::string_view path) {
  constexpr std::string_view weights = "/weights/";
  const loaded_model& model = *on.current;
  if (path == "/model") return answer_with(asked, http::status::ok, describe(model));
  if (!path.starts_with(weights)) {
    return refuse(asked, http::status::not_found, "there are /model and /weights/NAME");
  }
  const auto found = model.weights.find(path.substr(weights.size()));
  if (found == model.weights.end()) {
    return refuse(asked, http::status::not_found, "the model has no tensor of this name");
  }
  return answer_with(asked, http::status::ok, describe(model, found->first, found->second));
}

/// The URI that the body of `POST /load` names.
std::optional<std::string> uri_in(const std::string& body) {
  beast::error_code failed;
  const json::value parsed = json::parse(body, failed);
  if (failed || !parsed.is_object()) return std::nullopt;
  const json::value* const uri = parsed.as_object().if_contains("uri");
  if (uri == nullptr || !uri->is_string()) return std::nullopt;
  return std::string(uri->as_string());
}

asio::awaitable<response> answer_load(service& on, request asked) {
  std::optional<std::string> uri = uri_in(asked.body());
  if (!uri) co_return refuse(asked, http::status::bad_request, R"(send {"uri": "s3://…"})");
  if (on.loading) co_return refuse(asked, http::status::conflict, "another model is being loaded");
  on.loading = true;
  const load_outcome outcome = co_await try_load(on, std::move(*uri));
  on.loading = false;
  if (outcome.status != http::status::ok) {
    co_return answer_with(asked, outcome.status,
                          json::object{{"error", outcome.kind}, {"message", outcome.message}});
  }
  co_return answer_with(asked, http::status::ok, describe(*on.current));
}

asio::awaitable<response> answer(service& on, request asked) {
  const auto target = boost::urls::parse_origin_form(asked.target());
  if (!target) co_return refuse(asked, http::status::bad_request, "this is no path");
  const std::string path = target->path();  // decoded
  if (asked.method() == http::verb::get) co_return answer_get(on, asked, path);
  if (asked.method() == http::verb::post && path == "/load") {
    response loaded = co_await answer_load(on, std::move(asked));
    co_return loaded;
  }
  co_return refuse(asked, http::status::method_not_allowed, "GET, or POST /load");
}

asio::awaitable<void> converse(service& on, tcp::socket connected) {
  constexpr std::chrono::seconds patience{30};
  constexpr std::size_t most = 64 * 1024;
  beast::tcp_stream stream(std::move(connected));
  beast::flat_buffer buffer(most);
  try {
    for (bool more = true; more;) {
      http::request_parser<http::string_body> parser;
      parser.body_limit(most / 2);
      stream.expires_after(patience);
      co_await http::async_read(stream, buffer, parser, use_awaitable);
      stream.expires_never();  // a load takes as long as it takes
      response answered = co_await answer(on, parser.release());
      more = answered.keep_alive();
      stream.expires_after(patience);
      co_await http::async_write(stream, answered, use_awaitable);
    }
  } catch (const boost::system::system_error&) {
    // The client has gone, or says what is no HTTP: this conversation is over.
  }
  beast::error_code ignored;
  stream.socket().shutdown(tcp::socket::shutdown_both, ignored);
}

// --- Running ------------------------------------------------------------------------------------

asio::awaitable<void> serve(service& on, std::string uri, std::uint16_t port) {
  co_await load(on, std::move(uri));
  tcp::acceptor acceptor(on.context, {asio::ip::address_v4::loopback(), port});
  std::cout << "listening on http://127.0.0.1:" << acceptor.local_endpoint().port() << std::endl;
  for (;;) {
    tcp::socket connected = co_await acceptor.async_accept(use_awaitable);
    connected.set_option(tcp::no_delay(true));
    asio::co_spawn(on.context, converse(on, std::move(connected)), asio::detached);
  }
}

int run(std::string uri, std::uint16_t port) {
  // Destroyed from the last to the first: helpers finish, the context drops what still waits, and
  // the runtime ends what that had under way.
  headrace::runtime engine;
  asio::io_context context(1);
  asio::thread_pool helpers(1);
  service all{engine, context, helpers};

  asio::signal_set signals(context, SIGINT, SIGTERM);
  signals.async_wait([&context](beast::error_code, int) { context.stop(); });
  std::exception_ptr failure;
  asio::co_spawn(context, serve(all, std::move(uri), port),
                 [&context, &failure](std::exception_ptr failed) {
                   failure = std::move(failed);
                   context.stop();
                 });
  context.run();
  if (failure) std::rethrow_exception(failure);
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  std::uint16_t port = 0;  // any that is free
  if (count == 3) {
    const char* const end = arguments[2] + std::strlen(arguments[2]);
    const auto [stopped, wrong] = std::from_chars(arguments[2], end, port);
    if (wrong != std::errc() || stopped != end) count = 0;
  }
  if (count != 2 && count != 3) {
    std::cerr << "usage: http_service URI [PORT]\n";
    return 2;
  }
  try {
    return run(arguments[1], port);
  } catch (const std::exception& failed) {
    std::cerr << failed.what() << "\n";
    return 1;
  }
}
