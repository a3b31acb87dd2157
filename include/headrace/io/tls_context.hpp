#pragma once

#include <headrace/base/result.hpp>
#include <headrace/io/tls_options.hpp>

#include <memory>

namespace headrace {

/// What TLS connections with the same options share: trusted authorities, our certificate, sessions
/// to resume. Threads: any.
class tls_context {
 public:
  /// Reads the files that `options` name, which may block. Errors: `invalid_request` that names the
  /// file and what is wrong with it.
  [[nodiscard]] static result<std::shared_ptr<tls_context>> make(const tls_options& options);

  ~tls_context();
  tls_context(const tls_context&) = delete;
  tls_context& operator=(const tls_context&) = delete;

 private:
  tls_context();
};

}  // namespace headrace
