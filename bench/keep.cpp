// Streams a model and keeps every tensor to the end: the `keep` comparison of `./run bench`.
//
//     keep [--threads N] [--max-concurrency N] [--memory-limit SIZE] URI
//
// One line of JSON on stdout, with the fields of `headrace stream --stats`. Any error: one line on
// stderr, exit status 1.

#include <headrace/headrace.hpp>

#include <getopt.h>
#include <sys/resource.h>

#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace {

using headrace::task;
using clock = std::chrono::steady_clock;
using seconds = std::chrono::duration<double>;

struct options {
  headrace::runtime_options runtime;
  headrace::open_options open;
  headrace::stream_options stream;
  std::string uri;
};

struct outcome {
  std::vector<headrace::tensor> tensors;
  headrace::model_statistics statistics;
  clock::time_point first_tensor;
  clock::time_point last_tensor;
};

task<outcome> keep_all(headrace::runtime& runtime, options chosen) {
  headrace::model model = co_await headrace::open(runtime, chosen.uri, chosen.open);
  outcome kept;
  kept.tensors.reserve(model.tensors().size());
  auto tensors = model.stream(chosen.stream);
  while (auto* tensor = co_await tensors.next()) {
    if (kept.tensors.empty()) kept.first_tensor = clock::now();
    kept.tensors.push_back(std::move(*tensor));
  }
  kept.last_tensor = clock::now();
  co_await tensors.close();
  kept.statistics = model.statistics();
  co_return kept;
}

double to_seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
}

void print(const outcome& kept, headrace::io_backend backend) {
  std::uint64_t bytes = 0;
  for (const auto& tensor : kept.tensors) bytes += tensor.bytes().size();
  if (!kept.statistics.first_request) throw std::runtime_error("nothing was requested");
  const clock::time_point start = *kept.statistics.first_request;
  const double duration = seconds(kept.last_tensor - start).count();
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  std::printf(
      "{\"tensors\": %zu, \"bytes\": %llu, \"seconds\": %.6f, \"gbps\": %.4f, "
      "\"first_tensor_seconds\": %.6f, \"requests\": %llu, \"retries\": %llu, "
      "\"cpu_seconds\": %.6f, \"peak_rss_bytes\": %lld, \"io_backend\": \"%s\"}\n",
      kept.tensors.size(), static_cast<unsigned long long>(bytes), duration,
      static_cast<double>(bytes) / duration / 1e9, seconds(kept.first_tensor - start).count(),
      static_cast<unsigned long long>(kept.statistics.requests),
      static_cast<unsigned long long>(kept.statistics.retries),
      to_seconds(usage.ru_utime) + to_seconds(usage.ru_stime),
      static_cast<long long>(usage.ru_maxrss) * 1024,
      std::string(headrace::to_string(backend)).c_str());
}

unsigned parse_count(const char* option, const char* text) {
  unsigned count = 0;
  const char* end = text + std::strlen(text);
  const auto [stop, code] = std::from_chars(text, end, count);
  if (code != std::errc{} || stop != end || count == 0) {
    throw std::invalid_argument(std::string("--") + option +
                                ": expected a whole number from 1, got: " + text);
  }
  return count;
}

options parse(int count, char** arguments) {
  static constexpr option names[] = {
      {"threads", required_argument, nullptr, 't'},
      {"max-concurrency", required_argument, nullptr, 'c'},
      {"memory-limit", required_argument, nullptr, 'm'},
      {nullptr, 0, nullptr, 0},
  };
  opterr = 0;  // one message, ours
  options parsed;
  int found = 0;
  while ((found = getopt_long(count, arguments, "", names, nullptr)) != -1) {
    switch (found) {
      case 't':
        parsed.runtime.threads = parse_count("threads", optarg);
        break;
      case 'c':
        parsed.open.max_concurrency = parse_count("max-concurrency", optarg);
        break;
      case 'm':
        parsed.stream.memory_limit = headrace::parse_size(optarg).value();
        break;
      default:
        throw std::invalid_argument(
            "usage: keep [--threads N] [--max-concurrency N] [--memory-limit SIZE] URI");
    }
  }
  if (optind + 1 != count) throw std::invalid_argument("expected one URI");
  parsed.uri = arguments[optind];
  return parsed;
}

}  // namespace

int main(int count, char** arguments) {
  try {
    const options chosen = parse(count, arguments);
    headrace::runtime runtime(chosen.runtime);
    const outcome kept = headrace::sync_wait(keep_all(runtime, chosen));
    print(kept, runtime.backend());
    return 0;
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "keep: %s\n", failure.what());
    return 1;
  }
}
