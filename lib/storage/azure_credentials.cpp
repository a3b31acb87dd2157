#include "storage/azure_credentials.hpp"

#include "storage/json_answer.hpp"
#include "storage/percent.hpp"
#include "storage/service_request.hpp"
#include "storage/text.hpp"
#include "storage/xml_answer.hpp"

#include <headrace/base/log.hpp>
#include <headrace/base/sizes.hpp>
#include <headrace/io/file.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <utility>

namespace headrace {
namespace {

constexpr std::string_view audience = "https://storage.azure.com/";
constexpr std::size_t longest_token = 64_KiB;

std::string form_value(std::string_view text) { return percent_encode(text, slash::encoded); }

// What a service of tokens answers, as far as it can be read. Nothing of it is trusted.
struct token_answer {
  bool is_object = false;
  std::string token;
  std::optional<system_time> expires;
  std::string code;     ///< `invalid_client`
  std::string message;  ///< For people; one sentence.
};

// Seconds, which some services write as text.
std::optional<std::int64_t> seconds_of(const boost::json::object& object, std::string_view name) {
  constexpr std::uint64_t most = 7'000'000'000;  // the year 2191: what nanoseconds reach to
  const auto value = detail::integer_of(object, name);
  if (!value || *value > most) return std::nullopt;
  return static_cast<std::int64_t>(*value);
}

token_answer read_answer(std::string_view body) {
  token_answer read;
  const auto object = detail::parse_json_object(body);
  if (!object) return read;
  read.is_object = true;
  read.token = detail::string_of(*object, "access_token");
  // The time that remains is right also where the clocks are not.
  if (const auto left = seconds_of(*object, "expires_in"))
    read.expires = real_clock().wall() + std::chrono::seconds(*left);
  else if (const auto at = seconds_of(*object, "expires_on"))
    read.expires = system_time(std::chrono::seconds(*at));
  read.code = detail::if_visible(detail::string_of(*object, "error"), 64);
  std::string message = detail::string_of(*object, "error_description");
  if (message.empty()) message = detail::string_of(*object, "message");
  message.resize(std::min(message.find_first_of("\r\n"), message.size()));
  read.message = detail::for_message(std::move(message), 300);
  return read;
}

// A service that repeats what it was sent must not bring it into a message.
bool repeats(const std::string& message, const std::string& secret) {
  return message.find(secret) != std::string::npos ||
         message.find(form_value(secret)) != std::string::npos;
}

class entra_source final : public expiring_source<entra_token> {
 public:
  entra_source(entra_settings settings, std::shared_ptr<const network_settings> network)
      : settings_(std::move(settings)), network_(std::move(network)) {}

  task<result<expiring<entra_token>>> fetch(storage_loop& loop) override {
    switch (settings_.from) {
      case entra_settings::source::client_secret: {
        auto token = co_await ask_entra(
            loop, "&client_secret=" + form_value(settings_.client_secret), settings_.client_secret);
        co_return token;
      }
      case entra_settings::source::workload_identity: {
        auto assertion = co_await read_token_file(loop);
        if (!assertion) co_return failure{assertion.error()};
        auto token = co_await ask_entra(
            loop,
            "&client_assertion_type=urn%3Aietf%3Aparams%3Aoauth%3Aclient-assertion-type%3Ajwt-bearer"
            "&client_assertion=" +
                form_value(*assertion),
            *assertion);
        co_return token;
      }
      case entra_settings::source::app_service: {
        auto token = co_await ask_app_service(loop);
        co_return token;
      }
      case entra_settings::source::machine:
        break;
    }
    auto token = co_await ask_machine(loop);
    co_return token;
  }

 private:
  task<result<expiring<entra_token>>> ask_entra(storage_loop& loop, std::string proof,
                                                std::string secret) {
    service_request wanted = request("", network_);
    wanted.about = "Microsoft Entra (" + settings_.service.origin.to_string() + ")";
    wanted.asked.request.method = "POST";
    wanted.asked.request.target += "/" + percent_encode(settings_.tenant) + "/oauth2/v2.0/token";
    wanted.asked.request.fields.emplace_back("Content-Type", "application/x-www-form-urlencoded");
    wanted.asked.request.body =
        "grant_type=client_credentials&client_id=" + form_value(settings_.client_id) +
        "&scope=" + form_value(std::string(audience) + ".default") + proof;
    const std::string about = wanted.about;
    auto answered = co_await ask_service(loop, std::move(wanted));
    if (!answered) co_return failure{answered.error()};
    const token_answer read = read_answer(answered->body);
    if (answered->head.status() == 200) co_return take(read, about, *answered);
    const bool by_file = settings_.from == entra_settings::source::workload_identity;
    std::string message = about + " refuses the identity";
    if (!read.message.empty() && !repeats(read.message, secret)) message += ": " + read.message;
    message += by_file ? " (check AZURE_TENANT_ID, AZURE_CLIENT_ID and AZURE_FEDERATED_TOKEN_FILE)"
                       : " (check AZURE_TENANT_ID, AZURE_CLIENT_ID and AZURE_CLIENT_SECRET)";
    co_return failure{refusal(std::move(message), read, *answered)};
  }

  task<result<expiring<entra_token>>> ask_app_service(storage_loop& loop) {
    service_request wanted = request("2019-08-01", nullptr);
    wanted.about = "the identity's service (IDENTITY_ENDPOINT)";
    wanted.asked.request.fields.emplace_back("X-IDENTITY-HEADER", settings_.identity_header);
    const std::string about = wanted.about;
    auto answered = co_await ask_service(loop, std::move(wanted));
    if (!answered) co_return failure{answered.error()};
    const token_answer read = read_answer(answered->body);
    if (answered->head.status() == 200) co_return take(read, about, *answered);
    std::string message = about + " gives no token";
    if (!read.message.empty() && !repeats(read.message, settings_.identity_header))
      message += ": " + read.message;
    message += " (check that the app has an identity, and AZURE_CLIENT_ID where it has several)";
    co_return failure{refusal(std::move(message), read, *answered)};
  }

  task<result<expiring<entra_token>>> ask_machine(storage_loop& loop) {
    const std::string about =
        "the machine's metadata service (" + settings_.service.origin.to_string() + ")";
    auto answered = co_await ask_service(loop, machine_request(about, 0));
    if (!answered) {
      const errc kind = answered.error().kind();
      // Nobody there: most machines are none of Azure's.
      const bool absent = kind == errc::connect_error || kind == errc::timeout;
      if (absent) co_return nobody(about + " does not answer");
      if (kind != errc::unavailable && kind != errc::throttled) co_return failure{answered.error()};
      auto again = co_await ask_service(loop, machine_request(about, 3));
      answered = std::move(again);
      if (!answered) co_return failure{answered.error()};
    }
    const token_answer read = read_answer(answered->body);
    const int status = answered->head.status();
    if (status == 200 && read.is_object) co_return take(read, about, *answered);
    // Another cloud's service, or one without an identity for this machine.
    if (settings_.client_id.empty()) co_return nobody(about + " knows no identity");
    std::string message = about + " gives no token for AZURE_CLIENT_ID";
    if (!read.message.empty()) message += ": " + read.message;
    message += " (check that this identity is assigned to the machine)";
    co_return failure{refusal(std::move(message), read, *answered)};
  }

  [[nodiscard]] service_request machine_request(const std::string& about, unsigned retries) const {
    service_request wanted = request("2018-02-01", nullptr);
    wanted.about = about;
    wanted.asked.request.target = settings_.service.path + "/metadata/identity/oauth2/token" +
                                  wanted.asked.request.target.substr(settings_.service.path.size());
    wanted.asked.request.fields.emplace_back("Metadata", "true");
    wanted.connect_limit = std::chrono::seconds(1);
    wanted.retries = retries;
    return wanted;
  }

  // To the service, with what an identity's service is asked where that has a version.
  [[nodiscard]] service_request request(std::string_view version,
                                        std::shared_ptr<const network_settings> network) const {
    service_request wanted;
    wanted.asked.route = {settings_.service.origin, std::move(network)};
    wanted.asked.request.host = settings_.service.origin.host_field();
    wanted.asked.request.target = settings_.service.path;
    if (version.empty()) return wanted;
    wanted.asked.request.target +=
        "?api-version=" + std::string(version) + "&resource=" + form_value(audience);
    if (!settings_.client_id.empty())
      wanted.asked.request.target += "&client_id=" + form_value(settings_.client_id);
    return wanted;
  }

  task<result<std::string>> read_token_file(storage_loop& loop) {
    const std::string file_of = "the token file of AZURE_FEDERATED_TOKEN_FILE, ";
    auto opened = co_await file::open(loop.context, settings_.token_file);
    if (!opened) {
      co_return failure{
          error(errc::invalid_request,
                file_of + settings_.token_file + ", is not readable: " + opened.error().reason())};
    }
    std::string text(longest_token + 1, '\0');
    std::size_t size = 0;
    while (size < text.size()) {
      const iovec rest{text.data() + size, text.size() - size};
      auto count = co_await opened->read(loop.context, size, {&rest, 1});
      if (!count) {
        co_return failure{
            system_failure(count.error(), "cannot read " + file_of + settings_.token_file)};
      }
      if (*count == 0) break;
      size += *count;
    }
    text.resize(size);
    while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
    if (text.empty() || text.size() > longest_token || !detail::all(text, detail::is_visible)) {
      co_return failure{error(errc::invalid_request,
                              file_of + settings_.token_file +
                                  ", holds no token: expected a single line, at most 64 KiB long")};
    }
    co_return text;
  }

  [[nodiscard]] static result<expiring<entra_token>> take(const token_answer& read,
                                                          const std::string& about,
                                                          const service_answer& answered) {
    if (read.token.empty() || read.token.size() > longest_token ||
        !detail::all(read.token, detail::is_visible)) {
      return failure{error(errc::protocol_error, about + " answers without a token",
                           {.peer = answered.peer, .status = answered.head.status()})};
    }
    return expiring<entra_token>{{read.token, read.expires}, read.expires};
  }

  [[nodiscard]] static result<expiring<entra_token>> nobody(const std::string& why) {
    log(log_level::info, why + ": requests to Azure carry no credentials");
    return expiring<entra_token>{};
  }

  [[nodiscard]] static error refusal(std::string message, const token_answer& read,
                                     const service_answer& answered) {
    error_context context{.peer = answered.peer, .status = answered.head.status()};
    context.server_code = read.code;
    return error(errc::access_denied, std::move(message), std::move(context));
  }

  const entra_settings settings_;
  const std::shared_ptr<const network_settings> network_;
};

}  // namespace

std::shared_ptr<expiring_source<entra_token>> make_entra_source(
    entra_settings settings, std::shared_ptr<const network_settings> network) {
  return std::make_shared<entra_source>(std::move(settings), std::move(network));
}

}  // namespace headrace
