// Streams a model into a consumer on Boost.Asio, which drops each tensor: the `asio` comparison of
// `./run bench`.
//
//     asio_stream own|hosted|plain [--max-concurrency N] [--memory-limit SIZE] URI
//
// `hosted`: the loop runs inside the consumer's io_context. `own`: it has a thread of its own.
// `plain`: that, and headrace's own `next()` instead of Asio. One line of JSON on stdout, with the
// fields of `headrace stream --stats`. Any error: one line on stderr, exit status 1.

#include <headrace/asio.hpp>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <sys/resource.h>

#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace {

namespace net = boost::asio;
using clock = std::chrono::steady_clock;
using seconds = std::chrono::duration<double>;

struct options {
  std::string how;
  headrace::open_options open;
  headrace::stream_options stream;
  std::string uri;
};

struct outcome {
  std::uint64_t tensors = 0;
  std::uint64_t bytes = 0;
  headrace::model_statistics statistics;
  clock::time_point first_tensor;
  clock::time_point last_tensor;

  void take(const headrace::tensor& one) {
    if (tensors++ == 0) first_tensor = clock::now();
    bytes += one.bytes().size();
  }
};

net::awaitable<void> stream_by_asio(headrace::runtime* runtime, const options* chosen,
                                    outcome* all) {
  const auto model =
      co_await headrace::asio::async_open(*runtime, chosen->uri, chosen->open, net::use_awaitable);
  auto tensors = model.stream(chosen->stream);
  while (auto* one = co_await headrace::asio::async_next(tensors, net::use_awaitable))
    all->take(*one);
  all->last_tensor = clock::now();
  co_await headrace::asio::async_close(tensors, net::use_awaitable);
  all->statistics = model.statistics();
}

headrace::task<void> stream_by_next(headrace::runtime* runtime, const options* chosen,
                                    outcome* all) {
  const auto model = co_await headrace::open(*runtime, chosen->uri, chosen->open);
  auto tensors = model.stream(chosen->stream);
  while (auto* one = co_await tensors.next()) all->take(*one);
  all->last_tensor = clock::now();
  co_await tensors.close();
  all->statistics = model.statistics();
}

double to_seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
}

void print(const outcome& all, headrace::io_backend backend) {
  if (!all.statistics.first_request) throw std::runtime_error("nothing was requested");
  const clock::time_point start = *all.statistics.first_request;
  const double duration = seconds(all.last_tensor - start).count();
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  std::printf(
      "{\"tensors\": %llu, \"bytes\": %llu, \"seconds\": %.6f, \"gbps\": %.4f, "
      "\"first_tensor_seconds\": %.6f, \"requests\": %llu, \"retries\": %llu, "
      "\"cpu_seconds\": %.6f, \"peak_rss_bytes\": %lld, \"io_backend\": \"%s\"}\n",
      static_cast<unsigned long long>(all.tensors), static_cast<unsigned long long>(all.bytes),
      duration, static_cast<double>(all.bytes) / duration / 1e9,
      seconds(all.first_tensor - start).count(),
      static_cast<unsigned long long>(all.statistics.requests),
      static_cast<unsigned long long>(all.statistics.retries),
      to_seconds(usage.ru_utime) + to_seconds(usage.ru_stime),
      static_cast<long long>(usage.ru_maxrss) * 1024,
      std::string(headrace::to_string(backend)).c_str());
}

options parse(int count, char** arguments) {
  options parsed;
  for (int at = 1; at < count; ++at) {
    const std::string_view word = arguments[at];
    const bool more = at + 1 < count;
    if (word == "--max-concurrency" && more) {
      const std::string_view text = arguments[++at];
      const auto [stop, code] =
          std::from_chars(text.data(), text.data() + text.size(), parsed.open.max_concurrency);
      if (code != std::errc{} || stop != text.data() + text.size())
        throw std::invalid_argument("--max-concurrency: expected a whole number");
    } else if (word == "--memory-limit" && more) {
      parsed.stream.memory_limit = headrace::parse_size(arguments[++at]).value();
    } else if (parsed.how.empty()) {
      parsed.how = word;
    } else {
      parsed.uri = word;
    }
  }
  if (parsed.uri.empty() ||
      (parsed.how != "own" && parsed.how != "hosted" && parsed.how != "plain")) {
    throw std::invalid_argument(
        "usage: asio_stream own|hosted|plain [--max-concurrency N] [--memory-limit SIZE] URI");
  }
  return parsed;
}

void stream_and_print(const options& chosen) {
  outcome all;
  net::io_context context(1);
  headrace::runtime runtime =
      headrace::asio::hosted(context, {},
                             chosen.how == "hosted" ? headrace::asio::context_threads::one
                                                    : headrace::asio::context_threads::several);
  if (chosen.how == "plain") {
    headrace::sync_wait(stream_by_next(&runtime, &chosen, &all));
  } else {
    std::exception_ptr failure;
    net::co_spawn(context, stream_by_asio(&runtime, &chosen, &all),
                  [&failure](std::exception_ptr failed) { failure = failed; });
    context.run();
    if (failure) std::rethrow_exception(failure);
  }
  print(all, runtime.backend());
}

}  // namespace

int main(int count, char** arguments) {
  try {
    stream_and_print(parse(count, arguments));
    return 0;
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "asio_stream: %s\n", failure.what());
    return 1;
  }
}
