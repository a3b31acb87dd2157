#include "commands.hpp"
#include "digest.hpp"
#include "output.hpp"
#include "progress_bar.hpp"
#include "selections.hpp"
#include "standard_error.hpp"
#include "statistics.hpp"
#include "text.hpp"

#include <headrace/base/uri.hpp>
#include <headrace/headrace.hpp>

#include <chrono>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace headrace::cli {
namespace {

using digests = std::map<std::string, std::string, std::less<>>;

struct pass {
  cli::statistics statistics;
  cli::digests digests;
};

double seconds_between(steady_time from, steady_time to) {
  return std::chrono::duration<double>(to - from).count();
}

stream_options options_of(const stream_arguments& arguments, const model& opened,
                          const std::shared_ptr<progress_counters>& counters) {
  stream_options options;
  options.device = arguments.device;
  options.memory_limit = arguments.memory_limit;
  options.tensors = selections(opened, arguments.include, arguments.exclude);
  if (counters) options.on_progress = [counters](const progress& now) { counters->store(now); };
  return options;
}

// Has the bytes of a device's tensor hashed. What the references name must outlive the task.
task<void> digest_of_device(runtime& engine, sha256& hash, std::vector<std::byte>& scratch,
                            const tensor& arrived, digests& into) {
  scratch.resize(arrived.bytes().size());
  co_await copy_to_host(engine, arrived, scratch);
  into.emplace(arrived.name(), hash(scratch));
}

// Opens and streams once. What the references name must outlive the task.
task<pass> stream_once(runtime& engine, const stream_arguments& arguments, open_options opening,
                       std::shared_ptr<progress_counters> counters) {
  pass outcome;
  statistics& figures = outcome.statistics;
  const double cpu_before = process_cpu_seconds();
  const steady_time began = std::chrono::steady_clock::now();
  const model opened = co_await open(engine, arguments.source.uri, std::move(opening));

  const bool on_host = arguments.device.kind == device::type::cpu;
  sha256 hash;
  std::vector<std::byte> scratch;
  std::optional<steady_time> first;
  std::optional<steady_time> last;
  const auto count = [&](const tensor& arrived) {
    last = std::chrono::steady_clock::now();
    if (!first) first = last;
    ++figures.tensors;
    figures.bytes += arrived.bytes().size();
  };
  const copy_statistics copies_before = engine.copies();
  auto tensors = opened.stream(options_of(arguments, opened, counters));
  if (arguments.digest && !on_host) {
    co_await for_each(std::move(tensors), [&](const tensor& arrived) {
      count(arrived);
      return digest_of_device(engine, hash, scratch, arrived, outcome.digests);
    });
  } else {
    co_await for_each(std::move(tensors), [&](const tensor& arrived) {
      count(arrived);
      if (arguments.digest) outcome.digests.emplace(arrived.name(), hash(arrived.bytes()));
    });
  }
  if (!on_host) figures.copies = engine.copies() - copies_before;

  const model_statistics cost = opened.statistics();
  const steady_time start = cost.first_request.value_or(began);
  figures.seconds = seconds_between(start, last.value_or(std::chrono::steady_clock::now()));
  if (first) figures.first_tensor_seconds = seconds_between(start, *first);
  figures.requests = cost.requests;
  figures.retries = cost.retries;
  figures.cpu_seconds = process_cpu_seconds() - cpu_before;
  figures.peak_rss_bytes = process_peak_rss_bytes();
  figures.io_backend = to_string(engine.backend());
  co_return outcome;
}

// Between two passes a model may change; then there is no digest of it.
void check_same(const digests& before, const digests& now, unsigned number,
                const std::string& uri) {
  if (before == now) return;
  std::string what = "the set of tensors differs";
  for (const auto& [name, digest] : now) {
    const auto found = before.find(name);
    if (found == before.end() || found->second == digest) continue;
    what = "tensor " + json_string(name) + " differs";
    break;
  }
  throw error(errc::object_changed,
              what + " in pass " + std::to_string(number) + " from the first pass", {.uri = uri});
}

std::string digest_lines(const digests& of) {
  std::string lines;
  for (const auto& [name, digest] : of) lines += digest + "  " + printable_name(name) + "\n";
  return lines;
}

std::string figures_of(const std::vector<statistics>& passes, bool as_array) {
  if (!as_array) return passes.front().to_json() + "\n";
  std::string json = "[";
  for (const statistics& figures : passes) {
    if (json.size() > 1) json += ",\n ";
    json += figures.to_json();
  }
  return json + "]\n";
}

std::string displayed(const std::string& given) {
  const auto parsed = uri::parse(given);
  return parsed ? parsed->display() : std::string();
}

// Streams as often as asked for. Gives what belongs on standard output.
std::string stream_all(const stream_arguments& arguments, const std::shared_ptr<trace>& events,
                       const std::stop_token& stop) {
  const unsigned passes = arguments.repeat == 0 ? 1 : arguments.repeat;
  auto& terminal = standard_error::get();
  const int verbosity = arguments.source.verbosity;
  const bool summaries = verbosity > 0 || (verbosity == 0 && terminal.is_terminal());

  runtime engine({.threads = arguments.source.threads, .staging = arguments.staging});
  std::vector<statistics> figures;
  digests first_digests;
  for (unsigned number = 1; number <= passes; ++number) {
    const std::string label =
        passes > 1 ? std::to_string(number) + "/" + std::to_string(passes) + " " : "";
    open_options opening = arguments.source.opening;
    opening.trace = events;
    std::optional<progress_bar> bar(std::in_place, verbosity >= 0, label);
    pass done =
        sync_wait(stream_once(engine, arguments, std::move(opening), bar->counters()), stop);
    bar.reset();
    if (summaries) terminal.line(label + done.statistics.summary());
    figures.push_back(std::move(done.statistics));
    if (number == 1) {
      first_digests = std::move(done.digests);
    } else {
      check_same(first_digests, done.digests, number, displayed(arguments.source.uri));
    }
  }

  std::string output;
  if (arguments.digest) output += digest_lines(first_digests);
  if (!arguments.stats_file.empty()) {
    const std::string json = figures_of(figures, arguments.repeat > 0);
    if (arguments.stats_file == "-") {
      output += json;
    } else {
      write_file(arguments.stats_file, json);
    }
  }
  return output;
}

}  // namespace

void run_stream(const stream_arguments& arguments, std::stop_token stop) {
  if (!arguments.stats_file.empty() && arguments.stats_file != "-")
    check_can_write(arguments.stats_file);
  if (arguments.trace_file.empty()) {
    write_standard_output(stream_all(arguments, nullptr, stop));
    return;
  }
  check_can_write(arguments.trace_file);
  const auto events = std::make_shared<trace>();
  std::string output;
  try {
    output = stream_all(arguments, events, stop);
  } catch (...) {
    // A trace is wanted all the more where something went wrong; that is what must be told,
    // whatever becomes of the trace.
    try {
      write_file(arguments.trace_file, events->to_json());
    } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): see above
    }
    throw;
  }
  write_file(arguments.trace_file, events->to_json());
  write_standard_output(output);
}

}  // namespace headrace::cli
