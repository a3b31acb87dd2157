#include <headrace/base/uri.hpp>

#include <boost/url/parse.hpp>
#include <boost/url/pct_string_view.hpp>
#include <boost/url/url_view.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <system_error>
#include <utility>

namespace headrace {
namespace {

// Longer than any key or signed URL; what is read costs in proportion.
constexpr std::size_t max_length = 64 * 1024;

constexpr std::array<std::string_view, 6> key_stores{"s3", "gs", "az", "abfs", "abfss", "hf"};

bool is_alpha(char c) noexcept { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

bool is_control(char c) noexcept {
  const auto byte = static_cast<unsigned char>(c);
  return byte < 0x20 || byte == 0x7f;
}

bool has_control(std::string_view text) noexcept {
  return std::any_of(text.begin(), text.end(), is_control);
}

bool is_scheme(std::string_view text) noexcept {
  if (text.empty() || !is_alpha(text.front())) return false;
  return std::all_of(text.begin(), text.end(), [](char c) {
    return is_alpha(c) || (c >= '0' && c <= '9') || c == '+' || c == '-' || c == '.';
  });
}

std::string lower(std::string_view text) {
  std::string lowered(text);
  for (char& c : lowered) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return lowered;
}

bool is_key_store(std::string_view scheme) noexcept {
  return std::find(key_stores.begin(), key_stores.end(), scheme) != key_stores.end();
}

std::string what_a_store_holds(std::string_view scheme) {
  if (scheme == "az" || scheme == "abfs" || scheme == "abfss") return "container";
  return scheme == "hf" ? "organisation" : "bucket";
}

std::string example_of(std::string_view scheme) {
  if (scheme == "az") return "az://container/prefix";
  if (scheme == "abfs" || scheme == "abfss") {
    return std::string(scheme) + "://container@account.dfs.core.windows.net/prefix";
  }
  if (scheme == "hf") return "hf://org/repo";
  return std::string(scheme) + "://bucket/prefix";
}

// Boost's own string views convert differently from version to version.
template <class View>
std::string_view text_of(const View& view) noexcept {
  return {view.data(), view.size()};
}

failure<error> refused(std::string message) {
  return failure{error(errc::invalid_request, std::move(message))};
}

result<uri> parse_file(std::string_view rest) {
  const auto slash = rest.find('/');
  const auto host = lower(rest.substr(0, slash));
  if (!host.empty() && host != "localhost") {
    return refused(
        "a file URL names a file of this machine: expected file:///dir, or a plain path");
  }
  if (slash == std::string_view::npos) {
    return refused("a file URL needs an absolute path: expected file:///dir, or a plain path");
  }
  const auto encoded = rest.substr(slash);
  if (encoded.find_first_of("?#") != std::string_view::npos) {
    return refused(
        "a file URL has no query and no fragment: write %3F for ? and %23 for #, or use a plain path");
  }
  const auto checked = boost::urls::make_pct_string_view({encoded.data(), encoded.size()});
  if (!checked) {
    return refused("a file URL is percent-encoded: write %25 for %, or use a plain path");
  }
  uri parsed;
  parsed.scheme = "file";
  parsed.path = checked->decode();
  if (has_control(parsed.path)) return refused("a file URL must not name control characters");
  return parsed;
}

// Nothing of the text goes into these messages: what Boost.URL cannot read may hold a password
// anywhere.
result<uri> parse_url(std::string_view scheme, std::string_view text) {
  const auto url = boost::urls::parse_uri({text.data(), text.size()});
  const std::string expected = "expected " + std::string(scheme) + "://host[:port]/path";
  if (!url) {
    return refused("not a URL (" + url.error().message() + "): " + expected +
                   ", with other characters percent-encoded");
  }
  if (url->has_fragment()) {
    return refused("a URL's fragment is never sent to a server: leave it out, or write %23 for #");
  }
  const auto host = text_of(url->encoded_host());
  if (host.empty()) return refused("a URL without a host: " + expected);
  if (host.find('%') != std::string_view::npos) {
    return refused("a URL's host must not be percent-encoded: " + expected);
  }
  uri parsed;
  parsed.scheme = scheme;
  parsed.authority = lower(host);
  if (const auto port = text_of(url->port()); !port.empty()) {
    std::uint16_t number = 0;
    const auto read = std::from_chars(port.data(), port.data() + port.size(), number);
    if (read.ec != std::errc{} || read.ptr != port.data() + port.size() || number == 0) {
      return refused("a URL's port is a number from 1 to 65535: " + expected);
    }
    parsed.authority += ':' + std::to_string(number);
  }
  parsed.user_info = text_of(url->encoded_userinfo());
  parsed.path = text_of(url->encoded_path());
  if (parsed.path.empty()) parsed.path = "/";
  // Boost.URL 1.81 ends an authority at the first character that cannot be in it: `host:8x/` would
  // ask `host:8` for `x/`, and `user@host@evil/` the host `host`.
  if (parsed.path.front() != '/') return refused("not a URL (invalid host or port): " + expected);
  parsed.query = text_of(url->encoded_query());
  return parsed;
}

result<uri> parse_keys(std::string_view scheme, std::string_view rest) {
  uri parsed;
  parsed.scheme = scheme;
  const auto slash = rest.find('/');
  auto authority = rest.substr(0, slash);
  if (slash != std::string_view::npos) parsed.path = rest.substr(slash + 1);

  const auto at = authority.rfind('@');
  const bool container_at_account = scheme == "abfs" || scheme == "abfss";
  if (at != std::string_view::npos && !container_at_account) {
    parsed.user_info = authority.substr(0, at);
    authority.remove_prefix(at + 1);
  }
  if (is_key_store(scheme)) {
    if (authority.empty() || (container_at_account && at == 0)) {
      return refused("missing " + what_a_store_holds(scheme) + ": expected " + example_of(scheme));
    }
    // `s3://KEY:SECRET/WITH/SLASH@bucket/…` would otherwise pass for a bucket and a key, and stand
    // in messages. Not repeated here for the same reason. An ARN is for the storage room to judge.
    if (authority.find(':') != std::string_view::npos && authority.substr(0, 4) != "arn:") {
      return refused("a " + what_a_store_holds(scheme) +
                     " has no ':' in its name, and keys do not belong into a URI: expected " +
                     example_of(scheme));
    }
  } else if (const auto mark = parsed.path.find('?'); mark != std::string::npos) {
    // A scheme that no store of ours has: its query may hold a signature, and the text will stand
    // in a message.
    parsed.query = parsed.path.substr(mark + 1);
    parsed.path.resize(mark);
  }
  parsed.authority = authority;
  return parsed;
}

}  // namespace

result<uri> uri::parse(std::string_view text) {
  if (text.empty()) {
    return refused(
        "empty URI: expected s3://bucket/prefix, https://host/dir, file:///dir or a path");
  }
  if (text.size() > max_length) return refused("a URI of more than 64 KiB");
  if (has_control(text)) return refused("a URI must not hold control characters");

  const auto separator = text.find("://");
  const auto before = text.substr(0, separator);
  // `dir/a://b` is a path: no scheme holds a `/`.
  if (separator == std::string_view::npos || before.find('/') != std::string_view::npos) {
    uri local;
    local.scheme = "file";
    local.path = text;
    return local;
  }
  if (!is_scheme(before)) {
    return refused(
        "a URI begins with a scheme: expected s3://bucket/prefix, https://host/dir, file:///dir or a path");
  }
  const auto scheme = lower(before);
  const auto rest = text.substr(separator + 3);
  if (scheme == "file") return parse_file(rest);
  if (scheme == "http" || scheme == "https") return parse_url(scheme, text);
  return parse_keys(scheme, rest);
}

std::string uri::display() const {
  if (scheme == "file") return path;
  std::string shown = scheme + "://" + authority;
  if (path.empty()) return shown;
  if ((scheme == "http" || scheme == "https") && path.front() == '/') return shown + path;
  return shown + '/' + path;
}

}  // namespace headrace
