#include "stream/hosted.hpp"
#include "stream/model_state.hpp"

#include <headrace/coro/async_scope.hpp>
#include <headrace/safetensors/header.hpp>
#include <headrace/safetensors/index.hpp>
#include <headrace/stream/model.hpp>

#include <algorithm>
#include <atomic>

namespace headrace {
namespace {

constexpr std::string_view index_name = "model.safetensors.index.json";
constexpr std::string_view index_suffix = ".safetensors.index.json";
constexpr std::string_view file_suffix = ".safetensors";
constexpr std::string_view single_file_name = "model.safetensors";

/// Usually holds the header, tells the size and brings the first weights. Larger ones halve the
/// speed of many small files.
constexpr std::size_t speculative_size = 64_KiB;

/// Files whose headers are read at once.
constexpr unsigned header_concurrency = 32;

/// The files of a checkpoint: by its index, or by what there is.
struct discovered {
  std::vector<std::string> files;
  std::optional<index> shards;
  std::string index_name;
};

error nothing_found(const object_store& store, const std::string& looked_for) {
  return error(errc::not_found, "No files found: " + looked_for + " at " + store.location(),
               {.uri = store.location()});
}

task<result<discovered>> read_index(object_store& store, storage_loop& loop, const transfer& terms,
                                    std::string name) {
  const auto source = store.source(name);
  auto bytes = co_await read_object(*source, loop, terms, index_limit);
  if (!bytes) co_return failure{bytes.error()};
  auto parsed = parse_index({reinterpret_cast<const char*>(bytes->data()), bytes->size()});
  if (!parsed) co_return failure{parsed.error().with({.uri = source->uri()})};
  discovered found{
      .files = parsed->files, .shards = std::move(*parsed), .index_name = std::move(name)};
  co_return found;
}

task<result<discovered>> discover_listed(object_store& store, storage_loop& loop,
                                         const transfer& terms) {
  auto entries = co_await store.list(loop, terms);
  if (!entries) co_return failure{entries.error()};
  std::vector<std::string> files;
  std::vector<std::string> indexes;
  for (auto& entry : *entries) {
    if (entry.name.ends_with(index_suffix)) indexes.push_back(entry.name);
    if (entry.name.ends_with(file_suffix)) files.push_back(std::move(entry.name));
  }
  if (const auto usual = std::ranges::find(indexes, index_name); usual != indexes.end()) {
    indexes = {std::string(index_name)};
  }
  if (indexes.size() == 1) {
    auto found = co_await read_index(store, loop, terms, indexes.front());
    co_return found;
  }
  if (files.empty()) {
    co_return failure{nothing_found(
        store, "neither *" + std::string(index_suffix) + " nor *" + std::string(file_suffix))};
  }
  discovered found{.files = std::move(files), .shards = std::nullopt, .index_name = {}};
  co_return found;
}

/// Without a listing the names have to be known.
task<result<discovered>> discover_by_name(object_store& store, storage_loop& loop,
                                          const transfer& terms) {
  auto found = co_await read_index(store, loop, terms, std::string(index_name));
  if (found || found.error().kind() != errc::not_found) co_return found;
  discovered single{
      .files = {std::string(single_file_name)}, .shards = std::nullopt, .index_name = {}};
  co_return single;
}

task<result<discovered>> discover(object_store& store, storage_loop& loop, const transfer& terms) {
  if (!store.single().empty()) {
    discovered single{.files = {store.single()}, .shards = std::nullopt, .index_name = {}};
    co_return single;
  }
  auto finding =
      store.lists() ? discover_listed(store, loop, terms) : discover_by_name(store, loop, terms);
  auto found = co_await std::move(finding);
  co_return found;
}

/// Reads the header of one file. `first` keeps the file's first bytes.
task<result<header>> read_header(range_source& source, storage_loop& loop, const transfer& terms,
                                 std::vector<std::byte>& first) {
  first.resize(speculative_size);
  auto opened = co_await source.open(loop, terms, first);
  if (!opened) co_return failure{opened.error()};
  first.resize(*opened);
  const error_context where{.uri = source.uri()};
  auto size = header_size(first, source.size());
  if (!size) co_return failure{size.error().with(where)};
  if (*size <= first.size()) {
    auto parsed = parse_header(first, source.size());
    if (!parsed) co_return failure{parsed.error().with(where)};
    co_return parsed;
  }
  // `header_size` has checked the length against the file's real size.
  std::vector<std::byte> whole(static_cast<std::size_t>(*size));
  std::ranges::copy(first, whole.begin());
  buffer_sink rest{std::span(whole).subspan(first.size())};
  auto read = co_await source.read(loop, terms, {first.size(), whole.size() - first.size()}, rest);
  if (!read) co_return failure{read.error()};
  auto parsed = parse_header(whole, source.size());
  if (!parsed) co_return failure{parsed.error().with(where)};
  co_return parsed;
}

/// What the readers of headers share. They run on one loop.
struct header_reading {
  detail::model_state& state;
  storage_loop& loop;
  const transfer& terms;
  const discovered& found;
  std::vector<detail::parsed_file> files;
  detail::speculative_bytes speculative;
  std::size_t next = 0;
};

task<void> read_headers(header_reading& all) {
  while (all.next < all.found.files.size()) {
    const std::size_t file = all.next++;
    range_source& source = *all.state.sources[file];
    auto parsed = co_await read_header(source, all.loop, all.terms, all.speculative.of_file[file]);
    if (!parsed) {
      if (parsed.error().kind() == errc::not_found && all.found.shards) {
        throw error(errc::not_found,
                    "the index " + all.found.index_name + " names " + all.found.files[file] +
                        ", which is not there",
                    {.uri = source.uri(), .status = parsed.error().context().status});
      }
      if (parsed.error().kind() == errc::not_found && !all.state.store->lists() &&
          all.state.store->single().empty()) {
        throw nothing_found(*all.state.store, "neither " + std::string(index_name) + " nor " +
                                                  std::string(single_file_name));
      }
      throw error(parsed.error());
    }
    all.files[file] = {all.found.files[file], source.size(), std::move(*parsed)};
  }
}

task<std::shared_ptr<detail::model_state>> open_here(std::shared_ptr<detail::model_state> state,
                                                     detail::loop_services* services) {
  storage_loop& loop = services->storage();
  const transfer terms = state->terms_from(loop.context.now());
  auto discovering = co_await discover(*state->store, loop, terms);
  const discovered found = std::move(discovering).value();

  const std::size_t count = found.files.size();
  header_reading reading{.state = *state, .loop = loop, .terms = terms, .found = found};
  reading.files.resize(count);
  reading.speculative.of_file.resize(count);
  for (const auto& name : found.files) state->sources.push_back(state->store->source(name));
  {
    const environment given = co_await current_environment();
    async_scope readers(given.stop);
    const std::size_t at_once =
        std::min<std::size_t>({count, state->options.max_concurrency, header_concurrency});
    for (std::size_t reader = 0; reader < at_once; ++reader)
      readers.spawn(loop.context, read_headers(reading));
    co_await readers.join();
  }
  auto built =
      detail::build_catalogue(std::move(reading.files), found.shards ? &*found.shards : nullptr);
  if (!built) throw error(built.error().with({.uri = state->store->location()}));
  state->contents = std::move(*built);
  state->keep_speculative(std::move(reading.speculative));
  co_return state;
}

void check(const open_options& options) {
  const auto refuse = [](const std::string& why) { throw error(errc::invalid_request, why); };
  if (options.chunk_size < 64_KiB)
    refuse("a chunk size of " + format_size(options.chunk_size) +
           " is too small: use 64 KiB or more");
  if (options.max_concurrency == 0) refuse("a concurrency of 0 would fetch nothing: use 1 or more");
  if (options.connect_limit.count() <= 0) refuse("the connect limit has to be longer than nothing");
  if (options.stall_limit.count() <= 0) refuse("the stall limit has to be longer than nothing");
  if (options.deadline.count() < 0) refuse("the deadline lies in the past");
}

task<model> open_checked(std::shared_ptr<detail::runtime_state> runtime, std::string uri,
                         open_options options) {
  check(options);
  auto state = std::make_shared<detail::model_state>();
  state->store = open_store(uri, options.storage).value();
  state->runtime = runtime;
  state->terms.limits.connect_limit = options.connect_limit;
  state->terms.limits.stall_limit = options.stall_limit;
  state->terms.limits.retries = options.retries;
  state->terms.direct_io = options.direct_io;
  state->options = std::move(options);
  auto opening = detail::hosted<std::shared_ptr<detail::model_state>>(
      runtime, [state](detail::loop_services& loop) {
        return detail::within(state->options.deadline, open_here(state, &loop));
      });
  auto opened = co_await std::move(opening);
  co_return model(std::move(opened));
}

}  // namespace

task<model> open(runtime& runtime, std::string uri, open_options options) {
  return open_checked(runtime.state(), std::move(uri), std::move(options));
}

}  // namespace headrace
