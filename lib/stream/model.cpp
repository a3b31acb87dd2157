#include <headrace/stream/model.hpp>

#include "stream/fetch.hpp"
#include "stream/hosted.hpp"
#include "stream/model_state.hpp"

namespace headrace {
namespace {

constexpr std::uint64_t small_file_limit = 256_MiB;

task<std::vector<std::byte>> read_here(std::shared_ptr<const detail::model_state> state,
                                       std::string name, detail::loop_services* loop) {
  const transfer terms = state->terms_from(loop->context().now());
  const auto source = state->store->source(name);
  auto bytes = co_await read_object(*source, loop->storage(), terms, small_file_limit);
  co_return std::move(bytes).value();
}

task<std::vector<object_entry>> list_here(std::shared_ptr<const detail::model_state> state,
                                          detail::loop_services* loop) {
  const transfer terms = state->terms_from(loop->context().now());
  auto entries = co_await state->store->list_all(loop->storage(), terms);
  co_return std::move(entries).value();
}

}  // namespace

std::span<const tensor_info> model::tensors() const noexcept { return state_->contents.tensors; }

std::span<const file_info> model::files() const noexcept { return state_->contents.files; }

const tensor_info* model::find(std::string_view name) const noexcept {
  return state_->contents.find(name);
}

std::uint64_t model::total_bytes() const noexcept { return state_->contents.total_bytes; }

const std::string& model::uri() const noexcept { return state_->store->location(); }

async_generator<tensor> model::stream(stream_options options) const {
  return fetch::stream(state_, std::move(options));
}

task<std::vector<std::byte>> model::read_file(std::string_view name) const {
  // Not a coroutine: what the name points to need not outlive this call.
  return detail::hosted<std::vector<std::byte>>(
      state_->runtime, [state = state_, name = std::string(name)](detail::loop_services& loop) {
        return detail::within(state->options.deadline, read_here(state, name, &loop));
      });
}

task<std::vector<object_entry>> model::list_files() const {
  return detail::hosted<std::vector<object_entry>>(
      state_->runtime, [state = state_](detail::loop_services& loop) {
        return detail::within(state->options.deadline, list_here(state, &loop));
      });
}

model_statistics model::statistics() const noexcept {
  const transfer_statistics& counted = *state_->terms.statistics;
  model_statistics found{.requests = counted.requests.load(std::memory_order_relaxed),
                         .retries = counted.retries.load(std::memory_order_relaxed),
                         .bytes = counted.bytes.load(std::memory_order_relaxed),
                         .first_request = std::nullopt};
  if (const auto first = counted.first_request.load(std::memory_order_relaxed); first != 0) {
    found.first_request = steady_time(steady_time::duration(first));
  }
  return found;
}

}  // namespace headrace
