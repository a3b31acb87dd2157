#include <headrace/io/tls_stream.hpp>

namespace headrace {

task<result<std::unique_ptr<byte_stream>>> secure(io_context&, std::unique_ptr<byte_stream>,
                                                  std::shared_ptr<tls_context>, std::string) {
  co_return failure{error(errc::unsupported, "https is not built yet: use an http:// endpoint")};
}

}  // namespace headrace
