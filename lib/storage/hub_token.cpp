#include "storage/hub_token.hpp"

#include "storage/small_file.hpp"
#include "storage/text.hpp"

#include <array>
#include <optional>
#include <string_view>
#include <utility>

namespace headrace {
namespace {

constexpr std::size_t longest_token = 4096;

failure<error> refused(const std::string& message) {
  return failure{error(errc::invalid_request, message)};
}

/// As the Hub's own tools clean a token: without the line's end that an editor or `echo` leaves.
std::string cleaned(std::string_view text) {
  const auto is_blank = [](char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; };
  while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
  return std::string(text);
}

bool is_token(std::string_view text) noexcept {
  return text.size() <= longest_token && detail::all(text, detail::is_visible);
}

bool is_yes(std::string_view text) noexcept {
  constexpr std::array<std::string_view, 4> yes{"1", "true", "yes", "on"};
  for (const auto word : yes) {
    if (detail::same_name(text, word)) return true;
  }
  return false;
}

/// Where the Hub's own tools leave a token when somebody logs in.
std::vector<std::string> token_files(const variable_lookup& variable) {
  std::vector<std::string> files;
  const auto add = [&files](std::string path) {
    for (const auto& known : files) {
      if (known == path) return;
    }
    files.push_back(std::move(path));
  };
  if (auto file = first_of(variable, {"HF_TOKEN_PATH"}); !file.value.empty())
    add(std::move(file.value));
  if (const auto home = first_of(variable, {"HF_HOME"}); !home.value.empty())
    add(home.value + "/token");
  if (const auto cache = first_of(variable, {"XDG_CACHE_HOME"}); !cache.value.empty()) {
    add(cache.value + "/huggingface/token");
  } else if (const auto home = first_of(variable, {"HOME"}); !home.value.empty()) {
    add(home.value + "/.cache/huggingface/token");
  }
  return files;
}

class hub_token_source final : public expiring_source<hub_token> {
 public:
  explicit hub_token_source(hub_settings settings) : settings_(std::move(settings)) {}

  task<result<expiring<hub_token>>> fetch(storage_loop& loop) override {
    if (!settings_.token.bearer.empty())
      co_return expiring<hub_token>{settings_.token, std::nullopt};
    if (!settings_.anonymous_reason.empty()) co_return none(settings_.anonymous_reason);
    for (const auto& path : settings_.files) {
      auto text = co_await read_small_file(loop, path, longest_token);
      if (!text) co_return failure{text.error()};
      if (!*text) continue;
      std::string token = cleaned(**text);
      if (!is_token(token)) {
        co_return refused(path +
                          " holds no token of the Hub: log in again ('hf auth login'), or "
                          "set HF_TOKEN");
      }
      if (!token.empty())
        co_return expiring<hub_token>{{std::move(token), "the file " + path}, std::nullopt};
    }
    co_return none("no token was found");
  }

 private:
  static expiring<hub_token> none(const std::string& why) {
    return {{.bearer = {}, .source = "none: requests are anonymous, since " + why}, std::nullopt};
  }

  const hub_settings settings_;
};

}  // namespace

result<hub_settings> read_hub_settings(const storage_options& options,
                                       const variable_lookup& variable) {
  hub_settings settings;
  const auto named = first_of(variable, {"HF_ENDPOINT"});
  auto endpoint =
      !options.endpoint.empty() ? parse_service_place(options.endpoint, "storage.endpoint")
      : !named.value.empty()    ? parse_service_place(named.value, named.name)
                                : parse_service_place("https://huggingface.co", "the endpoint");
  if (!endpoint) return failure{endpoint.error()};
  if (!endpoint->query.empty()) return refused("the Hub's endpoint must not have a query");
  settings.endpoint = std::move(*endpoint);

  if (options.anonymous) {
    settings.anonymous_reason = "storage.anonymous is set";
    return settings;
  }
  if (!options.token.empty()) {
    settings.token = {cleaned(options.token), "storage.token"};
    if (settings.token.bearer.empty() || !is_token(settings.token.bearer)) {
      return refused(
          "storage.token holds a space, a line end or another character that tokens do not have");
    }
    return settings;
  }
  const auto disabled = first_of(variable, {"HF_HUB_DISABLE_IMPLICIT_TOKEN"});
  if (is_yes(disabled.value)) {
    settings.anonymous_reason = std::string(disabled.name) + " is set";
    return settings;
  }
  for (const char* const name : {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"}) {
    std::string token = cleaned(first_of(variable, {name}).value);
    if (token.empty()) continue;
    if (!is_token(token)) {
      return refused(std::string(name) +
                     " holds a space, a line end or another character that tokens do not have");
    }
    settings.token = {std::move(token), std::string("the variable ") + name};
    return settings;
  }
  settings.files = token_files(variable);
  return settings;
}

std::shared_ptr<expiring_source<hub_token>> make_hub_token_source(hub_settings settings) {
  return std::make_shared<hub_token_source>(std::move(settings));
}

}  // namespace headrace
