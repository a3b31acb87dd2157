#include <headrace/http/http_origin.hpp>

#include "http/text.hpp"

#include <algorithm>
#include <charconv>
#include <system_error>

namespace headrace {
namespace {

std::string with_brackets(const std::string& host) {
  return host.find(':') == std::string::npos ? host : '[' + host + ']';
}

}  // namespace

std::uint16_t default_port(std::string_view scheme) noexcept {
  if (scheme == "http") return 80;
  if (scheme == "https") return 443;
  return 0;
}

result<http_origin> http_origin::of(const uri& location) {
  http_origin origin;
  origin.scheme = location.scheme;
  origin.port = default_port(location.scheme);
  if (origin.port == 0) {
    return failure{
        error(errc::unsupported,
              "'" + location.scheme + "' is not spoken here: expected http:// or https://")};
  }
  const std::string_view authority = location.authority;
  std::string_view host = authority;
  std::string_view port;
  const auto bracket = authority.rfind(']');
  const auto colon = authority.find(':', bracket == std::string_view::npos ? 0 : bracket);
  if (colon != std::string_view::npos) {
    host = authority.substr(0, colon);
    port = authority.substr(colon + 1);
    const auto read = std::from_chars(port.data(), port.data() + port.size(), origin.port);
    if (read.ec != std::errc{} || read.ptr != port.data() + port.size() || origin.port == 0) {
      return failure{error(errc::invalid_request, "a URL's port is a number from 1 to 65535")};
    }
  }
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']')
    host = host.substr(1, host.size() - 2);
  if (host.empty())
    return failure{
        error(errc::invalid_request, "a URL without a host: expected https://host[:port]/path")};
  origin.host.resize(host.size());
  std::transform(host.begin(), host.end(), origin.host.begin(), detail::to_lower);
  return origin;
}

std::string http_origin::host_field() const {
  std::string field = with_brackets(host);
  if (port != default_port(scheme)) field += ':' + std::to_string(port);
  return field;
}

std::string http_origin::to_string() const {
  return scheme + "://" + with_brackets(host) + ':' + std::to_string(port);
}

}  // namespace headrace
