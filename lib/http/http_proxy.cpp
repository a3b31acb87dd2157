#include "http/http_proxy.hpp"

#include "http/text.hpp"

#include <headrace/http/http_connection.hpp>

#include <arpa/inet.h>
#include <boost/url/pct_string_view.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <system_error>
#include <utility>

namespace headrace::detail {
namespace {

// curl's own: a proxy for plain HTTP has no port that everybody agrees on.
constexpr std::uint16_t usual_proxy_port = 1080;

constexpr std::string_view blanks = " \t,";

std::string base64(std::string_view bytes) {
  constexpr std::string_view digits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string encoded;
  encoded.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t at = 0; at < bytes.size(); at += 3) {
    const std::size_t count = std::min<std::size_t>(3, bytes.size() - at);
    std::uint32_t group = 0;
    for (std::size_t place = 0; place < 3; ++place) {
      group = group << 8 | (place < count ? static_cast<unsigned char>(bytes[at + place]) : 0u);
    }
    for (std::size_t place = 0; place < 4; ++place) {
      encoded += place <= count ? digits[group >> (18 - 6 * place) & 63] : '=';
    }
  }
  return encoded;
}

/// Nothing where it is not percent-encoded right.
std::optional<std::string> decoded(std::string_view text) {
  const auto checked = boost::urls::make_pct_string_view({text.data(), text.size()});
  if (!checked) return std::nullopt;
  return checked->decode();
}

std::optional<std::string> basic_credentials(std::string_view user_info) {
  const auto colon = user_info.find(':');
  const auto user = decoded(user_info.substr(0, colon));
  const auto password =
      decoded(colon == std::string_view::npos ? std::string_view() : user_info.substr(colon + 1));
  if (!user || !password) return std::nullopt;
  return "Basic " + base64(*user + ':' + *password);
}

/// The bytes of an address, in the order of the network.
struct address_bytes {
  std::array<unsigned char, 16> bytes{};
  std::size_t size = 0;  ///< 4, 16, or 0 where it is no address.
};

address_bytes address_of(std::string_view text) {
  if (text.size() > 2 && text.front() == '[' && text.back() == ']')
    text = text.substr(1, text.size() - 2);
  address_bytes address;
  if (text.find('\0') != std::string_view::npos) return address;
  const std::string terminated(text);
  if (::inet_pton(AF_INET, terminated.c_str(), address.bytes.data()) == 1) {
    address.size = 4;
  } else if (::inet_pton(AF_INET6, terminated.c_str(), address.bytes.data()) == 1) {
    address.size = 16;
  }
  return address;
}

bool is_in_network(const address_bytes& address, std::string_view network) {
  const auto slash = network.find('/');
  const address_bytes base = address_of(network.substr(0, slash));
  if (base.size != address.size) return false;
  std::size_t bits = 8 * base.size;
  if (slash != std::string_view::npos) {
    const auto length = network.substr(slash + 1);
    const auto read = std::from_chars(length.data(), length.data() + length.size(), bits);
    if (read.ec != std::errc{} || read.ptr != length.data() + length.size()) return false;
    if (bits > 8 * base.size) return false;
  }
  if (std::memcmp(address.bytes.data(), base.bytes.data(), bits / 8) != 0) return false;
  if (bits % 8 == 0) return true;
  const unsigned mask = 0xffu << (8 - bits % 8) & 0xffu;
  return ((address.bytes[bits / 8] ^ base.bytes[bits / 8]) & mask) == 0;
}

std::string_view without_last_dot(std::string_view name) noexcept {
  if (name.ends_with('.')) name.remove_suffix(1);
  return name;
}

bool is_in_domain(std::string_view host, std::string_view domain) noexcept {
  domain = without_last_dot(domain);
  if (domain.starts_with('.')) domain.remove_prefix(1);
  host = without_last_dot(host);
  if (domain.empty() || domain.size() > host.size()) return false;
  const std::size_t above = host.size() - domain.size();
  if (above > 0 && host[above - 1] != '.') return false;
  return same_ignoring_case(host.substr(above), domain);
}

std::string authority_of(const http_origin& origin) {
  const bool is_six = origin.host.find(':') != std::string::npos;
  return (is_six ? '[' + origin.host + ']' : origin.host) + ':' + std::to_string(origin.port);
}

}  // namespace

result<http_proxy> http_proxy::parse(std::string_view url, std::string named_by) {
  const auto refused = [&named_by](errc kind, const std::string& why) {
    return failure{error(kind, named_by + ' ' + why)};
  };
  const std::string expected = "expected http[s]://[user:password@]host[:port]";
  std::string scheme = "http";
  if (const auto end = url.find("://"); end != std::string_view::npos) {
    scheme = url.substr(0, end);
    std::transform(scheme.begin(), scheme.end(), scheme.begin(), to_lower);
    url.remove_prefix(end + 3);
  }
  if (scheme.starts_with("socks")) {
    return refused(
        errc::unsupported,
        "names a SOCKS proxy, which headrace does not speak: name an HTTP proxy, or name "
        "the host in NO_PROXY");
  }
  if (scheme != "http" && scheme != "https")
    return refused(errc::invalid_request, "names a proxy of another kind: " + expected);
  // Messages of the parser hold nothing of the text, but they speak of URLs of stores.
  const auto parsed = uri::parse(scheme + "://" + std::string(url));
  if (!parsed) {
    return refused(errc::invalid_request,
                   "is not the URL of a proxy: " + expected +
                       ", with other characters of user and password percent-encoded");
  }
  auto at = http_origin::of(*parsed);
  if (!at) return refused(errc::invalid_request, "is not the URL of a proxy: " + expected);
  const std::string_view authority = parsed->authority;
  const auto bracket = authority.rfind(']');
  const auto colon = authority.find(':', bracket == std::string_view::npos ? 0 : bracket);
  if (colon == std::string_view::npos && scheme == "http") at->port = usual_proxy_port;
  http_proxy proxy{.at = std::move(*at), .authorization = {}, .named_by = {}};
  if (!parsed->user_info.empty()) {
    auto credentials = basic_credentials(parsed->user_info);
    if (!credentials) {
      return refused(errc::invalid_request,
                     "holds a user or a password that is not percent-encoded right");
    }
    proxy.authorization = std::move(*credentials);
  }
  proxy.named_by = std::move(named_by);
  return proxy;
}

std::string http_proxy::describe() const {
  return "the proxy " + at.to_string() + " (" + named_by + ')';
}

bool bypasses_proxy(std::string_view no_proxy, std::string_view host) {
  const address_bytes address = address_of(host);
  bool first = true;
  while (!no_proxy.empty()) {
    const auto begin = no_proxy.find_first_not_of(blanks);
    if (begin == std::string_view::npos) break;
    no_proxy.remove_prefix(begin);
    const auto entry = no_proxy.substr(0, no_proxy.find_first_of(blanks));
    no_proxy.remove_prefix(entry.size());
    // The only wildcard, and no entry of a list.
    if (first && entry == "*" && no_proxy.find_first_not_of(blanks) == std::string_view::npos)
      return true;
    first = false;
    const bool named = address.size > 0 ? is_in_network(address, entry) : is_in_domain(host, entry);
    if (named) return true;
  }
  return false;
}

result<std::optional<http_proxy>> proxy_for(const http_route& route) {
  const proxy_settings& settings = route.settings().proxy;
  const bool secure = route.origin.is_secure();
  const std::string& url = secure ? settings.https : settings.http;
  if (url.empty() || bypasses_proxy(settings.bypass, route.origin.host))
    return std::optional<http_proxy>();
  auto proxy = http_proxy::parse(url, secure ? settings.https_named_by : settings.http_named_by);
  if (!proxy) return failure{proxy.error()};
  return std::optional<http_proxy>(std::move(*proxy));
}

error proxy_denial(const http_proxy& proxy, const http_response_head& head) {
  std::string what = proxy.describe();
  bool told = false;
  bool basic = false;
  for (std::size_t at = 0; at < head.field_count(); ++at) {
    const auto [name, value] = head.field_at(at);
    if (!same_ignoring_case(name, "Proxy-Authenticate")) continue;
    told = true;
    constexpr std::string_view scheme = "basic";
    basic = basic || std::search(value.begin(), value.end(), scheme.begin(), scheme.end(),
                                 [](char a, char b) { return to_lower(a) == b; }) != value.end();
  }
  if (told && !basic) {
    what += " asks for an authentication other than Basic, which is the one that is spoken";
  } else if (proxy.authorization.empty()) {
    what += " asks for a user and a password: write " + proxy.named_by + " as " + proxy.at.scheme +
            "://user:password@" + authority_of(proxy.at);
  } else {
    what += " refuses the user and password in " + proxy.named_by;
  }
  return error(errc::access_denied, std::move(what));
}

task<result<std::unique_ptr<byte_stream>>> open_tunnel(std::unique_ptr<byte_stream> transport,
                                                       http_proxy proxy, http_origin origin) {
  http_connection asking(std::move(transport));
  http_request request;
  request.method = "CONNECT";
  request.target = authority_of(origin);
  request.host = request.target;
  if (!proxy.authorization.empty())
    request.fields.emplace_back("Proxy-Authorization", proxy.authorization);
  auto head = co_await asking.send(std::move(request));
  if (!head) {
    const error& failed = head.error();
    if (failed.kind() == errc::cancelled) {
      co_return failure{error(errc::cancelled, "stopped while " + proxy.describe() +
                                                   " was asked for a connection to " +
                                                   origin.to_string())};
    }
    co_return failure{error(failed.kind(),
                            proxy.describe() + ", asked for a connection to " + origin.to_string() +
                                ": " + failed.reason(),
                            failed.context())};
  }
  const error_context context{.peer = asking.peer(), .status = head->status()};
  // Nobody but the proxy can answer here. Some (tinyproxy) say 401 to a wrong password.
  if (head->status() == 407 || head->status() == 401)
    co_return failure{proxy_denial(proxy, *head).with(context)};
  if (head->status() < 200 || head->status() > 299) {
    co_return failure{error(errc::connect_error,
                            proxy.describe() + " refuses a connection to " + origin.to_string(),
                            context)};
  }
  auto stream = asking.release();
  if (!stream) {
    co_return failure{
        error(stream.error().kind(), proxy.describe() + ": " + stream.error().reason(), context)};
  }
  co_return std::move(stream);
}

}  // namespace headrace::detail
