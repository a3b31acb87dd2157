#include <headrace/base/error.hpp>

#include <array>
#include <cerrno>

namespace headrace {
namespace {

constexpr std::array<std::string_view, 17> kind_names = {"",
                                                         "not_found",
                                                         "access_denied",
                                                         "invalid_request",
                                                         "throttled",
                                                         "timeout",
                                                         "object_changed",
                                                         "truncated",
                                                         "protocol_error",
                                                         "tls_error",
                                                         "connect_error",
                                                         "unavailable",
                                                         "invalid_safetensors",
                                                         "unsupported",
                                                         "cancelled",
                                                         "out_of_memory",
                                                         "internal"};

class category final : public std::error_category {
 public:
  [[nodiscard]] const char* name() const noexcept override { return "headrace"; }
  [[nodiscard]] std::string message(int value) const override {
    return std::string(to_string(static_cast<errc>(value)));
  }
};

std::string describe(const std::string& message, const error_context& context) {
  std::string line = message;
  std::string details;
  const auto add = [&details](const std::string& text) {
    if (!details.empty()) details += ", ";
    details += text;
  };
  if (context.range) {
    add("bytes " + std::to_string(context.range->begin) + "-" +
        std::to_string(context.range->empty() ? context.range->begin : context.range->end() - 1));
  }
  if (context.attempt > 1) add("attempt " + std::to_string(context.attempt));
  if (!context.peer.empty()) add("peer " + context.peer);
  if (context.status != 0) add("status " + std::to_string(context.status));
  if (!context.server_code.empty()) add("code " + context.server_code);
  if (!context.request_id.empty()) add("request id " + context.request_id);

  if (!context.uri.empty() && line.find(context.uri) == std::string::npos)
    line += ": " + context.uri;
  if (!details.empty()) line += " (" + details + ")";
  // One error is one line, whatever a server or a file name put into it.
  for (char& letter : line) {
    if (static_cast<unsigned char>(letter) < 0x20 || letter == 0x7f) letter = ' ';
  }
  return line;
}

}  // namespace

std::string_view to_string(errc kind) noexcept {
  const auto index = static_cast<std::size_t>(kind);
  return index > 0 && index < kind_names.size() ? kind_names[index] : "internal";
}

const std::error_category& error_category() noexcept {
  static const category instance;
  return instance;
}

struct error::details {
  std::string reason;
  error_context context;
  std::string message;
  std::string what;
};

error::error(errc kind, std::string message, error_context context)
    : std::system_error(make_error_code(kind)) {
  auto filled = std::make_shared<details>();
  filled->message = describe(message, context);
  filled->reason = std::move(message);
  filled->context = std::move(context);
  filled->what = std::string(to_string(kind)) + ": " + filled->message;
  details_ = std::move(filled);
}

const std::string& error::message() const noexcept { return details_->message; }
const std::string& error::reason() const noexcept { return details_->reason; }
const error_context& error::context() const noexcept { return details_->context; }
const char* error::what() const noexcept { return details_->what.c_str(); }

error error::with(const error_context& more) const {
  error_context merged = details_->context;
  if (merged.uri.empty()) merged.uri = more.uri;
  if (!merged.range) merged.range = more.range;
  if (merged.attempt == 0) merged.attempt = more.attempt;
  if (merged.peer.empty()) merged.peer = more.peer;
  if (merged.status == 0) merged.status = more.status;
  if (merged.server_code.empty()) merged.server_code = more.server_code;
  if (merged.request_id.empty()) merged.request_id = more.request_id;
  return error(kind(), details_->reason, std::move(merged));
}

errc kind_of(std::error_code code) noexcept {
  if (code.category() == error_category()) return static_cast<errc>(code.value());
  if (code.category() != std::system_category() && code.category() != std::generic_category()) {
    // Codes of a library say what they are like.
    const std::error_condition like = code.default_error_condition();
    if (like.category() == code.category()) return errc::internal;
    return kind_of({like.value(), like.category()});
  }
  switch (code.value()) {
    case ENOENT:
    case ENOTDIR:
      return errc::not_found;
    case EACCES:
    case EPERM:
      return errc::access_denied;
    case ECANCELED:
      return errc::cancelled;
    case ETIMEDOUT:
      return errc::timeout;
    case ENOMEM:
      return errc::out_of_memory;
    case ECONNREFUSED:
    case ECONNRESET:
    case ECONNABORTED:
    case EHOSTUNREACH:
    case EHOSTDOWN:
    case ENETUNREACH:
    case ENETDOWN:
    case ENETRESET:
    case EPIPE:
    case EADDRNOTAVAIL:
    case ENOTCONN:
      return errc::connect_error;
    case ENOSYS:
    case EOPNOTSUPP:
    case EAFNOSUPPORT:
      return errc::unsupported;
    case ESTALE:
      return errc::object_changed;
    case EINVAL:
    case EISDIR:
    case ENAMETOOLONG:
    case ELOOP:
      return errc::invalid_request;
    default:
      return errc::unavailable;
  }
}

error system_failure(std::error_code code, const std::string& what_failed) {
  if (code.category() == error_category()) return error(kind_of(code), what_failed);
  return error(kind_of(code), what_failed + ": " + code.message());
}

}  // namespace headrace
