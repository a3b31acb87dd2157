#pragma once

#include "storage_client.hpp"

#include <doctest/doctest.h>
#include <support/checkpoint.hpp>
#include <support/scripted_server.hpp>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace headrace::test {

/// What the servers of these tests hold, and its name.
inline const std::string object = content_of("object", 300'000);
inline const std::string small_name = "x.safetensors";

/// The server's answer up to the body's byte `count`.
[[nodiscard]] inline std::string cut(const std::string& whole, std::size_t count) {
  return whole.substr(0, whole.find("\r\n\r\n") + 4 + count);
}

/// A server that answers the first request, which opens the object, as it should be, and the later
/// ones as `later` says.
class opened_object {
 public:
  explicit opened_object(std::function<steps(const seen_request&)> later,
                         std::string_view etag = "\"v1\"")
      : etag_(etag), server([this, later = std::move(later)](const seen_request& request) -> steps {
          if (request.number == 0) return {action::send{answer_with(object, request, etag_)}};
          return later(request);
        }) {
    source = storage_client::source(server.url("/m/" + small_name), small_name);
    const auto first = here.open(*source);
    REQUIRE_MESSAGE(first, (first ? "" : first.error().what()));
    REQUIRE((*first == object.substr(0, 65'536)));
    REQUIRE(source->size() == object.size());
  }

 private:
  std::string etag_;

 public:
  scripted_server server;
  storage_client here;
  std::shared_ptr<range_source> source;

  /// Bytes [100000, 250000), right or not at all.
  [[nodiscard]] result<std::string> read() {
    auto bytes = here.read(*source, 100'000, 150'000);
    if (bytes) CHECK((*bytes == object.substr(100'000, 150'000)));
    return bytes;
  }

  [[nodiscard]] error refused() {
    const auto bytes = read();
    REQUIRE_FALSE(bytes);
    return bytes.error();
  }
};

}  // namespace headrace::test
