#pragma once

#include <headrace/base/byte_range.hpp>
#include <headrace/base/errc.hpp>
#include <headrace/base/export.hpp>

#include <memory>
#include <optional>
#include <string>
#include <system_error>

namespace headrace {

/// Where an error happened, as far as it is known. Never holds a secret: URIs come without query
/// and user information.
struct error_context {
  std::string uri;                  ///< The object, as the user would write it.
  std::optional<byte_range> range;  ///< The bytes that were asked for.
  unsigned attempt = 0;  ///< Which attempt failed, counted from 1; 0 where attempts do not apply.
  std::string peer;      ///< The address that was talked to, `192.0.2.7:443`.
  int status = 0;        ///< The HTTP status, 0 where there was none.
  std::string server_code;  ///< The store's own code, such as `NoSuchKey`.
  std::string request_id;   ///< The store's own request id, which its support asks for.
};

/// The one exception type of headrace: a kind, a message that says what to do next, and the
/// context.
///
/// Cheap to copy, and copying never throws. Thrown at API edges; inside, `result<T>` carries it.
///
///     try { … } catch (const headrace::error& e) { if (e.kind() == headrace::errc::not_found) … }
class HEADRACE_API error : public std::system_error {
 public:
  explicit error(errc kind, std::string message, error_context context = {});
  // Copies only: there is no moved-from error without a message.
  error(const error&) noexcept = default;
  error& operator=(const error&) noexcept = default;
  ~error() override = default;

  [[nodiscard]] errc kind() const noexcept { return static_cast<errc>(code().value()); }

  /// `message` and the context in one line, without the kind.
  [[nodiscard]] const std::string& message() const noexcept;

  /// The message as it was given, without the context.
  [[nodiscard]] const std::string& reason() const noexcept;

  [[nodiscard]] const error_context& context() const noexcept;

  /// `KIND: message`.
  [[nodiscard]] const char* what() const noexcept override;

  /// The same error with the fields of `context` filled in where this one has none.
  [[nodiscard]] error with(const error_context& context) const;

 private:
  struct details;
  std::shared_ptr<const details> details_;
};

/// An `error` for a failed system call: `errno` values map to the kind that fits (`ENOENT` →
/// `not_found`, `EACCES` → `access_denied`, `ECANCELED` → `cancelled`, `ETIMEDOUT` → `timeout`,
/// connection errors → `connect_error`, …).
[[nodiscard]] HEADRACE_API error system_failure(std::error_code code,
                                                const std::string& what_failed);

/// The kind that fits an `errno` value in the generic or system category, or the code's own where
/// it is an `errc`. In a category of a library: the kind of the code's `default_error_condition()`.
[[nodiscard]] HEADRACE_API errc kind_of(std::error_code code) noexcept;

}  // namespace headrace
