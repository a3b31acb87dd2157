#include <headrace/storage/storage_options.hpp>

#include "storage/text.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <string_view>

namespace headrace {
namespace {

constexpr std::size_t most_headers = 50;
constexpr std::size_t longest_header = 16 * 1024;

// What a request of ours says about itself, its range and its pin: setting these from outside would
// break an answer's check.
constexpr std::array<std::string_view, 22> ours{"host",
                                                "content-length",
                                                "transfer-encoding",
                                                "connection",
                                                "keep-alive",
                                                "te",
                                                "trailer",
                                                "upgrade",
                                                "expect",
                                                "range",
                                                "if-match",
                                                "if-none-match",
                                                "if-modified-since",
                                                "if-range",
                                                "if-unmodified-since",
                                                "accept-encoding",
                                                "proxy-authorization",
                                                "x-amz-date",
                                                "x-amz-content-sha256",
                                                "x-amz-security-token",
                                                "x-ms-date",
                                                "x-ms-version"};

failure<error> refused(const std::string& message) {
  return failure{error(errc::invalid_request, message)};
}

bool is_token(std::string_view text) noexcept {
  return !text.empty() && detail::all(text, [](char c) {
    return detail::is_alphanumeric(c) ||
           std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
  });
}

bool is_field_value(std::string_view text) noexcept {
  return detail::all(text, [](char c) { return !detail::is_control(c) || c == '\t'; });
}

bool has_control(std::string_view text) noexcept {
  return !detail::all(text, [](char c) { return !detail::is_control(c); });
}

result<void> check_credentials(const aws_credentials& credentials) {
  if (credentials.access_key_id.empty())
    return refused("storage.credentials: access_key_id is empty");
  if (credentials.secret_access_key.empty())
    return refused("storage.credentials: secret_access_key is empty");
  for (const auto& [name, value] :
       {std::pair<const char*, std::string_view>{"access_key_id", credentials.access_key_id},
        std::pair<const char*, std::string_view>{"secret_access_key",
                                                 credentials.secret_access_key},
        std::pair<const char*, std::string_view>{"session_token", credentials.session_token}}) {
    if (!detail::all(value, detail::is_visible)) {
      return refused(std::string("storage.credentials: ") + name +
                     " holds a space, a line end or another character that keys do not have");
    }
  }
  return {};
}

}  // namespace

result<void> check(const storage_options& options) {
  if (has_control(options.endpoint))
    return refused("storage.endpoint must not hold control characters");
  if (!options.region.empty() && !detail::is_region(options.region))
    return refused("storage.region is no name of a region");
  if (has_control(options.ca_file))
    return refused("storage.ca_file must not hold control characters");
  if (options.anonymous && options.credentials) {
    return refused("storage.anonymous and storage.credentials exclude each other: set one of them");
  }
  if (options.credentials) {
    if (auto checked = check_credentials(*options.credentials); !checked)
      return failure{checked.error()};
  }
  if (options.headers.size() > most_headers)
    return refused("storage.headers holds more than 50 headers");
  for (const auto& [name, value] : options.headers) {
    // A name that is none may be a whole line, with its secret: not repeated.
    if (!is_token(name) || name.size() > 256)
      return refused(
          "storage.headers: a name is empty or holds a character that HTTP does not allow");
    if (std::find(ours.begin(), ours.end(), detail::lower(name)) != ours.end()) {
      return refused("storage.headers: '" + name + "' is set by headrace itself");
    }
    if (!is_field_value(value))
      return refused("storage.headers: the value of '" + name +
                     "' holds a line end or another control character");
    if (value.size() > longest_header)
      return refused("storage.headers: the value of '" + name + "' is longer than 16 KiB");
  }
  return {};
}

}  // namespace headrace
