#include "storage/redirect.hpp"

#include <boost/url/parse.hpp>
#include <boost/url/url.hpp>

namespace headrace {

result<redirect_target> resolve_redirect(const http_origin& from, std::string_view target,
                                         std::string_view location) {
  const auto refused = [](const char* why) { return failure{error(errc::protocol_error, why)}; };
  const std::string asked =
      from.to_string() + std::string(target);  // what is parsed only points into it
  const auto base = boost::urls::parse_uri(asked);
  const auto reference = boost::urls::parse_uri_reference(location);
  if (!base || !reference) return refused("a redirect to something that is no URL");
  boost::urls::url resolved;
  if (!boost::urls::resolve(*base, *reference, resolved))
    return refused("a redirect to something that is no URL");

  uri parsed;
  parsed.scheme = resolved.scheme();
  parsed.authority = resolved.encoded_host_and_port();
  auto origin = http_origin::of(parsed);
  if (!origin) return refused("a redirect to something that is neither http nor https");
  if (from.is_secure() && !origin->is_secure())
    return refused("a redirect from https to http is refused");
  std::string path(resolved.encoded_path());
  // Above the root is the root (RFC 3986, 5.2.4); Boost leaves such steps in.
  while (path.starts_with("/../")) path.erase(0, 3);
  if (path.empty()) path = "/";
  // Boost takes `host:8443x` for a port and a path.
  if (path.front() != '/') return refused("a redirect to something that is no URL");
  if (resolved.has_query()) path += "?" + std::string(resolved.encoded_query());
  return redirect_target{std::move(*origin), std::move(path)};
}

}  // namespace headrace
