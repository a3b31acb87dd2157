#include <headrace/http/http_request.hpp>

#include "http/text.hpp"

#include <algorithm>
#include <array>
#include <string_view>

namespace headrace {
namespace {

using detail::is_control;
using detail::is_token;
using detail::same_ignoring_case;

// They say where this request ends and what the answer may look like: there must not be a second
// opinion.
constexpr std::array<std::string_view, 8> own_fields{
    "Host", "Accept-Encoding", "Connection", "Content-Length", "Transfer-Encoding",
    "TE",   "Keep-Alive",      "Upgrade"};

bool is_own(std::string_view name) noexcept {
  return std::any_of(own_fields.begin(), own_fields.end(),
                     [name](std::string_view own) { return same_ignoring_case(name, own); });
}

bool is_visible_ascii(char c) noexcept { return c > 0x20 && c < 0x7f; }

bool is_host_character(char c) noexcept {
  return is_visible_ascii(c) && std::string_view("/\\?#@,\"<>").find(c) == std::string_view::npos;
}

bool is_value_character(char c) noexcept { return c == '\t' || !is_control(c); }

template <class Predicate>
bool all(std::string_view text, Predicate allowed) {
  return !text.empty() && std::all_of(text.begin(), text.end(), allowed);
}

failure<error> refused(std::string message) {
  return failure{error(errc::invalid_request, std::move(message))};
}

result<void> check(const http_request& request) {
  if (!all(request.method, is_token))
    return refused("an HTTP method is a word, without spaces or control characters");
  if (!all(request.target, is_visible_ascii)) {
    return refused(
        "an HTTP request target must be percent-encoded: no spaces, control or non-ASCII characters");
  }
  if (!all(request.host, is_host_character))
    return refused("the host of an HTTP request is not a host name or address");
  for (const auto& [name, value] : request.fields) {
    if (!all(name, is_token))
      return refused("the name of an HTTP header field is a word, without spaces or separators");
    if (is_own(name)) {
      return refused("the HTTP header field " + name + " is headrace's own and cannot be set");
    }
    if (!std::all_of(value.begin(), value.end(), is_value_character)) {
      return refused("the value of the HTTP header field " + name +
                     " holds a line break or another control character");
    }
  }
  return {};
}

void append(std::string& into, std::string_view name, std::string_view value) {
  into.append(name).append(": ").append(value).append("\r\n");
}

}  // namespace

result<void> http_request::serialize(std::string& into) const {
  auto checked = check(*this);
  if (!checked) return checked;

  into.append(method).append(1, ' ').append(target).append(" HTTP/1.1\r\n");
  append(into, "Host", host);
  const bool named = std::any_of(fields.begin(), fields.end(), [](const auto& field) {
    return same_ignoring_case(field.first, "User-Agent");
  });
  if (!named) append(into, "User-Agent", "headrace/" HEADRACE_VERSION);
  append(into, "Accept-Encoding", "identity");
  for (const auto& [name, value] : fields) append(into, name, value);
  if (!body.empty() || method == "POST" || method == "PUT" || method == "PATCH") {
    append(into, "Content-Length", std::to_string(body.size()));
  }
  if (!keep_alive) append(into, "Connection", "close");
  into.append("\r\n").append(body);
  return {};
}

}  // namespace headrace
