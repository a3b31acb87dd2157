#include <headrace/http/http_response_head.hpp>

#include "http/text.hpp"

#include <headrace/base/assert.hpp>

namespace headrace {

std::string_view http_response_head::reason() const noexcept {
  return std::string_view(text_).substr(0, reason_size_);
}

std::pair<std::string_view, std::string_view> http_response_head::field_at(
    std::size_t index) const noexcept {
  HEADRACE_ASSERT(index < fields_.size());
  const entry& found = fields_[index];
  const std::string_view text = text_;
  return {text.substr(found.name, found.name_size), text.substr(found.value, found.value_size)};
}

std::optional<std::string_view> http_response_head::field(std::string_view name) const noexcept {
  for (std::size_t index = 0; index < fields_.size(); ++index) {
    const auto [found, value] = field_at(index);
    if (detail::same_ignoring_case(found, name)) return value;
  }
  return std::nullopt;
}

std::optional<std::uint64_t> http_response_head::body_size() const noexcept {
  if (!has_body_) return 0;
  if (chunked_ || ends_at_close_) return std::nullopt;
  return content_length_;
}

}  // namespace headrace
