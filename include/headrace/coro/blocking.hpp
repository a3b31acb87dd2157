#pragma once

#include <headrace/coro/async_generator.hpp>
#include <headrace/coro/sync_wait.hpp>

#include <iterator>

namespace headrace {

/// A generator as a range for synchronous callers: each step blocks the caller until the next value
/// is there.
///
///     for (headrace::tensor& t : headrace::blocking(model.stream())) std::puts(t.name().data());
template <class T>
class blocking_range {
 public:
  explicit blocking_range(async_generator<T> values) noexcept : values_(std::move(values)) {}
  blocking_range(blocking_range&&) noexcept = default;
  blocking_range& operator=(blocking_range&&) noexcept = default;
  /// Ends the stream without waiting; its rest is freed in the background.
  ~blocking_range() = default;

  class iterator {
   public:
    using iterator_concept = std::input_iterator_tag;
    using difference_type = std::ptrdiff_t;
    using value_type = T;

    iterator(async_generator<T>* values, T* current) noexcept
        : values_(values), current_(current) {}
    [[nodiscard]] T& operator*() const noexcept { return *current_; }
    iterator& operator++() {
      current_ = sync_wait(values_->next());
      return *this;
    }
    void operator++(int) { ++*this; }
    friend bool operator==(const iterator& it, std::default_sentinel_t) noexcept {
      return it.current_ == nullptr;
    }

   private:
    async_generator<T>* values_;
    T* current_;
  };

  [[nodiscard]] iterator begin() { return iterator(&values_, sync_wait(values_.next())); }
  [[nodiscard]] std::default_sentinel_t end() const noexcept { return {}; }

 private:
  async_generator<T> values_;
};

/// See `blocking_range`.
template <class T>
[[nodiscard]] blocking_range<T> blocking(async_generator<T> values) noexcept {
  return blocking_range<T>(std::move(values));
}

}  // namespace headrace
