#pragma once

#include <headrace/base/export.hpp>
#include <headrace/base/result.hpp>
#include <headrace/io/tls_options.hpp>

#include <memory>

namespace headrace {

namespace detail {
struct tls_terms;
}

/// What TLS connections with the same options share: trusted authorities, our certificate, sessions
/// to resume. TLS 1.2 and 1.3. Threads: any.
///
///     auto made = co_await helpers.run([options] { return tls_context::make(options); });
class HEADRACE_API tls_context {
 public:
  /// Reads the files that `options` name, which may block: not on a loop. Without any, trusts what
  /// OpenSSL does by default and, where that is nothing, the bundle of the distribution.
  ///
  /// Errors: `invalid_request` that names the file and what is wrong with it, also where a
  /// certificate comes without its key.
  [[nodiscard]] static result<std::shared_ptr<tls_context>> make(const tls_options& options);

  ~tls_context();
  tls_context(const tls_context&) = delete;
  tls_context& operator=(const tls_context&) = delete;

  /// What is behind it; for the io room alone.
  [[nodiscard]] detail::tls_terms& terms() noexcept { return *terms_; }

 private:
  explicit tls_context(std::unique_ptr<detail::tls_terms> terms);

  std::unique_ptr<detail::tls_terms> terms_;
};

}  // namespace headrace
