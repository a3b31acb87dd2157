#pragma once

#include <headrace/base/assert.hpp>
#include <headrace/base/error.hpp>

#include <concepts>
#include <type_traits>
#include <utility>
#include <variant>

namespace headrace {

/// A failure on its way into a `result`: `return failure{error(errc::timeout, "…")};`
template <class E = error>
struct failure {
  E value;
};

template <class E>
failure(E) -> failure<E>;

/// A value or an error: what I/O paths return, where exceptions would cost too much or say too
/// little.
///
/// The part of `std::expected` (C++23) that headrace needs, with its names. `value()` throws the
/// error, so an API edge is `return co_await read().value()` in two statements. Access without a
/// check is a broken invariant.
///
///     auto received = co_await socket.receive(buffers);
///     if (!received) return failure{received.error()};
///     total += *received;
template <class T, class E = error>
class [[nodiscard]] result {
  static_assert(!std::is_reference_v<T>);
  using stored = std::conditional_t<std::is_void_v<T>, std::monostate, T>;

 public:
  using value_type = T;
  using error_type = E;

  result()
    requires std::is_void_v<T>
      : state_(std::in_place_index<0>) {}

  template <class U>
    requires(!std::is_void_v<T> && std::constructible_from<stored, U &&> &&
             !std::same_as<std::remove_cvref_t<U>, result>)
  result(U&& value)
      : state_(std::in_place_index<0>, std::forward<U>(value)) {}  // NOLINT: meant to be implicit

  template <class G>
    requires std::constructible_from<E, G&&>
  result(failure<G> failed)  // NOLINT: meant to be implicit
      : state_(std::in_place_index<1>, std::move(failed.value)) {}

  [[nodiscard]] bool has_value() const noexcept { return state_.index() == 0; }
  explicit operator bool() const noexcept { return has_value(); }

  [[nodiscard]] const E& error() const& noexcept {
    HEADRACE_ASSERT(!has_value());
    return *std::get_if<1>(&state_);
  }
  [[nodiscard]] E&& error() && noexcept {
    HEADRACE_ASSERT(!has_value());
    return std::move(*std::get_if<1>(&state_));
  }

  [[nodiscard]] stored& operator*() & noexcept
    requires(!std::is_void_v<T>)
  {
    HEADRACE_ASSERT(has_value());
    return *std::get_if<0>(&state_);
  }
  [[nodiscard]] const stored& operator*() const& noexcept
    requires(!std::is_void_v<T>)
  {
    HEADRACE_ASSERT(has_value());
    return *std::get_if<0>(&state_);
  }
  [[nodiscard]] stored&& operator*() && noexcept
    requires(!std::is_void_v<T>)
  {
    HEADRACE_ASSERT(has_value());
    return std::move(*std::get_if<0>(&state_));
  }
  [[nodiscard]] stored* operator->() noexcept
    requires(!std::is_void_v<T>)
  {
    return &**this;
  }
  [[nodiscard]] const stored* operator->() const noexcept
    requires(!std::is_void_v<T>)
  {
    return &**this;
  }

  /// The value; throws the error where there is none.
  T value() && {
    if (!has_value()) throw_error();
    if constexpr (!std::is_void_v<T>) return std::move(*std::get_if<0>(&state_));
  }

 private:
  [[noreturn]] void throw_error() {
    if constexpr (std::derived_from<E, std::exception>) {
      throw *std::get_if<1>(&state_);
    } else {
      throw std::system_error(*std::get_if<1>(&state_));
    }
  }

  std::variant<stored, E> state_;
};

/// What raw I/O returns: a value or the kernel's own error code. Cheap on both paths.
template <class T>
using io_result = result<T, std::error_code>;

}  // namespace headrace
