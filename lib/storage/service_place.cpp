#include "storage/service_place.hpp"

#include "storage/text.hpp"

#include <headrace/base/uri.hpp>

#include <utility>

namespace headrace {

result<service_place> parse_service_place(std::string_view url, const std::string& what) {
  const auto refused = [&what](const char* why) {
    return failure{error(errc::invalid_request, what + why)};
  };
  const auto parsed = uri::parse(url);
  if (!parsed || (parsed->scheme != "http" && parsed->scheme != "https"))
    return refused(" is no URL of a server: expected https://host[:port]");
  if (!parsed->user_info.empty())
    return refused(" must not hold a user or a password: expected https://host[:port]");
  auto origin = http_origin::of(*parsed);
  if (!origin) return refused(" is no URL of a server: expected https://host[:port]");
  service_place place{std::move(*origin), parsed->path, parsed->query};
  while (place.path.ends_with('/')) place.path.pop_back();
  return place;
}

bool is_loopback(const http_origin& origin) noexcept {
  const std::string_view host = origin.host;
  if (host == "localhost" || host == "::1") return true;
  return host.starts_with("127.") &&
         detail::all(host, [](char c) { return detail::is_digit(c) || c == '.'; });
}

result<void> check_keeps_secrets(const http_origin& endpoint) {
  if (keeps_secrets(endpoint)) return {};
  return failure{error(errc::invalid_request,
                       "the endpoint " + endpoint.to_string() +
                           " would get a token without encryption: use https, or set the "
                           "option anonymous")};
}

}  // namespace headrace
