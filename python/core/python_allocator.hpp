#pragma once

#include <headrace/device/allocator.hpp>
#include <headrace/io/blocking_pool.hpp>

#include <nanobind/nanobind.h>

#include <cstdint>
#include <optional>

namespace headrace::python {

namespace nb = nanobind;

/// Memory from a function of Python's: a framework's caching allocator.
///
/// `allocate(sizes)` gives a pair for each size: an address, and the object whose memory that is,
/// which is kept until the tensor's memory is dropped. It is called on a thread of the allocator's
/// own, with the GIL. A `MemoryError`, or an error whose class is called `OutOfMemoryError`, is
/// `out_of_memory`.
///
/// Threads: any may drop it, and what it gave, with the GIL or without.
class python_allocator final : public allocator {
 public:
  /// `stream`: in whose order that memory is reused, if that is so.
  python_allocator(nb::object allocate, std::optional<std::uintptr_t> stream) noexcept;
  ~python_allocator() override;
  python_allocator(const python_allocator&) = delete;
  python_allocator& operator=(const python_allocator&) = delete;

  task<result<allocated_batch>> allocate(device where, std::vector<std::size_t> sizes) override;

 private:
  [[nodiscard]] result<allocated_batch> ask(const std::vector<std::size_t>& sizes) const;

  PyObject* const allocate_;  ///< Owned.
  const std::optional<std::uintptr_t> stream_;
  blocking_pool helpers_{1};
};

}  // namespace headrace::python
