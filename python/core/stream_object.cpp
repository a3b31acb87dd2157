#include "stream_object.hpp"

#include <headrace/coro/with.hpp>

#include <nanobind/stl/shared_ptr.h>

#include <utility>

namespace headrace::python {
/// Whoever may use the generator.
class stream_object::turn {
 public:
  explicit turn(state& of) noexcept : state_(of) {}
  turn(const turn&) = delete;
  turn& operator=(const turn&) = delete;
  ~turn() {
    async_condition::wake_list woken;
    const std::lock_guard lock(state_.mutex);
    state_.busy = false;
    state_.idle.notify_all(woken);
  }

 private:
  state& state_;
};

stream_object::stream_object(const model& from, stream_options options) {
  state_->tensors = open(from, std::move(options), counters_);
}

async_generator<tensor> stream_object::open(const model& from, stream_options options,
                                            const std::shared_ptr<counters>& counted) {
  options.on_progress = [counted](const headrace::progress& now) {
    counted->bytes.store(now.bytes, std::memory_order_relaxed);
    counted->total_bytes.store(now.total_bytes, std::memory_order_relaxed);
    counted->tensors.store(now.tensors, std::memory_order_relaxed);
    counted->total_tensors.store(now.total_tensors, std::memory_order_relaxed);
  };
  return from.stream(std::move(options));
}

task<std::optional<tensor>> stream_object::take_next(std::shared_ptr<state> stream) {
  const turn mine(*stream);
  tensor* const arrived = co_await stream->tensors.next();
  if (arrived == nullptr) co_return std::nullopt;
  co_return std::optional<tensor>(std::move(*arrived));
}

task<void> stream_object::finish(std::shared_ptr<state> stream) {
  {
    std::unique_lock lock(stream->mutex);
    while (stream->busy) co_await stream->idle.wait_unstoppable(lock);
    stream->busy = true;
  }
  const turn mine(*stream);
  co_await stream->tensors.close();
}

nb::object stream_object::next(std::shared_ptr<event_executor> on) {
  {
    const std::lock_guard lock(state_->mutex);
    if (state_->closed) throw error(errc::cancelled, "the stream has been closed");
    if (state_->busy) {
      PyErr_SetString(PyExc_ValueError,
                      "somebody is waiting for the next tensor of this stream already");
      throw nb::python_error();
    }
    state_->busy = true;
  }
  return begin(std::move(on), take_next(state_), state_->stop);
}

nb::object stream_object::close(std::shared_ptr<event_executor> on) {
  bool busy = false;
  {
    const std::lock_guard lock(state_->mutex);
    state_->closed = true;
    busy = state_->busy;
  }
  if (busy) stop();
  return begin(std::move(on), finish(state_));
}

void stream_object::stop() noexcept { headrace::detail::request_stop_of(state_->stop); }

nb::object stream_object::progress() const {
  return nb::make_tuple(counters_->bytes.load(std::memory_order_relaxed),
                        counters_->total_bytes.load(std::memory_order_relaxed),
                        counters_->tensors.load(std::memory_order_relaxed),
                        counters_->total_tensors.load(std::memory_order_relaxed));
}

void bind_stream(nb::module_& module) {
  nb::class_<stream_object>(module, "Stream", "A stream of tensors.")
      .def("next", &stream_object::next, nb::arg("executor").none() = nb::none())
      .def("close", &stream_object::close, nb::arg("executor").none() = nb::none())
      .def("stop", &stream_object::stop)
      .def("progress", &stream_object::progress);
}

}  // namespace headrace::python
