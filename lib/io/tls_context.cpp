#include <headrace/io/tls_context.hpp>

namespace headrace {

tls_context::tls_context() = default;
tls_context::~tls_context() = default;

result<std::shared_ptr<tls_context>> tls_context::make(const tls_options&) {
  return failure{error(errc::unsupported, "https is not built yet: use an http:// endpoint")};
}

}  // namespace headrace
