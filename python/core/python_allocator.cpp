#include "python_allocator.hpp"

#include <headrace/base/error.hpp>

#include <nanobind/stl/string.h>

#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace headrace::python {
namespace {

/// Objects that were dropped by threads without the GIL, which a loop must not wait for.
class dropped_objects {
 public:
  static dropped_objects& instance() {
    // Never destroyed: tensors may be dropped while the process ends.
    static auto* const only = new dropped_objects;
    return *only;
  }

  void add(PyObject* dropped) noexcept {
    // After the interpreter's end there is nothing to give back to.
    if (Py_IsInitialized() == 0) return;
    if (PyGILState_Check() != 0) {
      Py_DECREF(dropped);
      return;
    }
    try {
      const std::lock_guard lock(mutex_);
      objects_.push_back(dropped);
    } catch (...) {  // NOLINT(bugprone-empty-catch): kept for ever, for want of a few bytes
      return;
    }
    // Where its queue is full, somebody comes by soon in any case.
    static_cast<void>(Py_AddPendingCall(&drop_later, nullptr));
  }

  /// With the GIL.
  void drop() noexcept {
    std::vector<PyObject*> dropped;
    {
      const std::lock_guard lock(mutex_);
      dropped.swap(objects_);
    }
    for (PyObject* const object : dropped) Py_DECREF(object);
  }

 private:
  static int drop_later(void*) noexcept {
    instance().drop();
    return 0;
  }

  std::mutex mutex_;
  std::vector<PyObject*> objects_;
};

void give_back(void* owner, std::byte*, std::size_t) noexcept {
  dropped_objects::instance().add(static_cast<PyObject*>(owner));
}

error failure_of(const nb::python_error& raised) {
  const auto kind = nb::cast<std::string>(raised.type().attr("__name__"));
  const bool full = kind == "OutOfMemoryError" || raised.matches(PyExc_MemoryError);
  auto text = nb::cast<std::string>(nb::str(raised.value()));
  text = text.substr(0, text.find('\n'));
  return error(full ? errc::out_of_memory : errc::internal,
               full ? text : "the allocator raised " + kind + ": " + text);
}

}  // namespace

python_allocator::python_allocator(nb::object allocate,
                                   std::optional<std::uintptr_t> stream) noexcept
    : allocate_(allocate.release().ptr()), stream_(stream) {}

python_allocator::~python_allocator() { dropped_objects::instance().add(allocate_); }

task<result<allocated_batch>> python_allocator::allocate(device, std::vector<std::size_t> sizes) {
  auto asking = helpers_.run([this, &sizes] { return ask(sizes); });
  auto given = co_await asking;
  co_return std::move(given);
}

result<allocated_batch> python_allocator::ask(const std::vector<std::size_t>& sizes) const {
  const nb::gil_scoped_acquire held;
  dropped_objects::instance().drop();
  try {
    nb::list wanted;
    for (const std::size_t size : sizes) wanted.append(size);
    const nb::object given = nb::borrow(allocate_)(wanted);
    allocated_batch batch;
    for (const nb::handle pair : given) {
      if (batch.blocks.size() == sizes.size()) break;
      const auto address = nb::cast<std::uintptr_t>(pair[0]);
      nb::object owner = nb::borrow(pair[1]);
      batch.blocks.emplace_back(reinterpret_cast<std::byte*>(address), sizes[batch.blocks.size()],
                                &give_back, owner.release().ptr());
    }
    if (stream_) {
      batch.stream = reinterpret_cast<cuda_stream>(*stream_);
      batch.ordered = true;
    }
    return batch;
  } catch (const nb::python_error& raised) {
    return failure{failure_of(raised)};
  } catch (const nb::cast_error&) {
    return failure{
        error(errc::internal, "the allocator must give pairs of an address and an object")};
  }
}

}  // namespace headrace::python
