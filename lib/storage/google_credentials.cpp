#include "storage/google_credentials.hpp"

#include "storage/google_credential_file.hpp"
#include "storage/google_jwt.hpp"
#include "storage/json_answer.hpp"
#include "storage/percent.hpp"
#include "storage/rfc3339.hpp"
#include "storage/service_request.hpp"
#include "storage/small_file.hpp"
#include "storage/text.hpp"

#include <headrace/io/blocking_pool.hpp>

#include <boost/json/array.hpp>
#include <boost/json/serialize.hpp>
#include <openssl/evp.h>

#include <initializer_list>
#include <utility>
#include <vector>

namespace headrace {
namespace {

using detail::integer_of;
using detail::parse_json_object;
using detail::string_of;

/// All that reading takes.
constexpr std::string_view storage_scope = "https://www.googleapis.com/auth/devstorage.read_only";
/// What asking for another account's token takes.
constexpr std::string_view iam_scope = "https://www.googleapis.com/auth/cloud-platform";

constexpr std::string_view log_in_again = "run 'gcloud auth application-default login' again";

/// Longer than any token of Google's.
constexpr std::size_t longest_token = std::size_t{16} * 1024;

std::string form_of(std::initializer_list<std::pair<std::string_view, std::string_view>> members) {
  std::string form;
  for (const auto& [name, value] : members) {
    if (value.empty()) continue;
    if (!form.empty()) form += '&';
    form += std::string(name) + '=' + percent_encode(value, slash::encoded);
  }
  return form;
}

/// The `Authorization` of a client that has a secret (RFC 6749, 2.3.1).
std::string basic_authorization(const google_external_account& account) {
  const std::string plain = percent_encode(account.client_id, slash::encoded) + ':' +
                            percent_encode(account.client_secret, slash::encoded);
  std::string encoded(4 * ((plain.size() + 2) / 3) + 1, '\0');
  const int size = EVP_EncodeBlock(reinterpret_cast<unsigned char*>(encoded.data()),
                                   reinterpret_cast<const unsigned char*>(plain.data()),
                                   static_cast<int>(plain.size()));
  encoded.resize(static_cast<std::size_t>(size));
  return "Basic " + encoded;
}

/// What a service of tokens says about a refusal; empty where it says nothing, or repeats one of
/// `secrets`.
std::string said_by(const service_answer& answer, std::initializer_list<std::string_view> secrets) {
  const auto body = parse_json_object(answer.body);
  if (!body) return {};
  std::string code = string_of(*body, "error");
  std::string description = string_of(*body, "error_description");
  if (const auto* const inner = detail::object_of(*body, "error")) {
    code = string_of(*inner, "status");
    description = string_of(*inner, "message");
  }
  // Before anything is cut off: the beginning of a secret is one as well.
  for (const auto secret : secrets) {
    const auto beginning = secret.substr(0, 16);
    if (beginning.size() >= 8 && (code.find(beginning) != std::string::npos ||
                                  description.find(beginning) != std::string::npos))
      return {};
  }
  std::string said = detail::printable(code, 64);
  if (!description.empty())
    said += (said.empty() ? "" : ": ") + detail::printable(description, 256);
  return said;
}

bool is_token(std::string_view text) noexcept {
  return !text.empty() && text.size() <= longest_token && detail::all(text, detail::is_visible);
}

/// A token as services hand it out, and how long it lives.
struct handed_out {
  std::string bearer;
  std::optional<system_time> expires;
};

failure<error> no_token(const std::string& service, const service_answer& answer) {
  return failure{error(errc::protocol_error, service + " has answered without a token",
                       {.peer = answer.peer, .status = answer.head.status()})};
}

/// `{"access_token": …, "expires_in": …}`
result<handed_out> read_token(const service_answer& answer, const std::string& service,
                              system_time now) {
  constexpr std::uint64_t longest_life = 366ULL * 24 * 3600;
  const auto body = parse_json_object(answer.body);
  if (!body) return no_token(service, answer);
  handed_out token{.bearer = string_of(*body, "access_token"), .expires = std::nullopt};
  const auto seconds = integer_of(*body, "expires_in");
  if (!is_token(token.bearer) || (seconds && *seconds > longest_life))
    return no_token(service, answer);
  if (seconds) token.expires = now + std::chrono::seconds(*seconds);
  return token;
}

class google_token_source final : public expiring_source<google_token> {
 public:
  google_token_source(google_settings settings, std::shared_ptr<const network_settings> network,
                      const clock& time)
      : settings_(std::move(settings)), network_(std::move(network)), time_(time) {}

  task<result<expiring<google_token>>> fetch(storage_loop& loop) override {
    if (settings_.anonymous) co_return none(settings_.anonymous_reason);
    if (!settings_.token.empty()) {
      co_return lasting({.bearer = settings_.token, .source = "storage.token"});
    }
    if (!settings_.named_file.empty()) {
      const std::string where = "GOOGLE_APPLICATION_CREDENTIALS: " + settings_.named_file;
      auto text = co_await read_small_file(loop, settings_.named_file);
      if (!text) co_return failure{about(where, text.error())};
      if (!*text) {
        co_return failure{error(errc::invalid_request,
                                where + " is not there: set the variable to a credential file, or "
                                        "unset it")};
      }
      auto token = co_await use_file(loop, std::move(**text), where);
      co_return token;
    }
    if (!settings_.well_known_file.empty()) {
      const std::string& where = settings_.well_known_file;
      auto text = co_await read_small_file(loop, where);
      if (!text) co_return failure{text.error()};
      if (*text) {
        auto token = co_await use_file(loop, std::move(**text), where);
        co_return token;
      }
    }
    if (!settings_.asks_metadata) co_return none("no credentials were found");
    auto token = co_await ask_metadata(loop);
    co_return token;
  }

 private:
  static expiring<google_token> lasting(google_token token) {
    return {std::move(token), std::nullopt};
  }

  static expiring<google_token> none(const std::string& why) {
    return lasting({.bearer = {}, .source = "none: requests are anonymous, since " + why});
  }

  static error about(const std::string& where, const error& failed) {
    if (failed.kind() == errc::cancelled) return failed;
    return error(failed.kind(), where + ": " + failed.reason(), failed.context());
  }

  task<result<expiring<google_token>>> use_file(storage_loop& loop, std::string text,
                                                std::string where) {
    auto file = parse_google_credential_file(text, where);
    if (!file) co_return failure{file.error()};
    google_token token{.bearer = {}, .source = where, .project = file->project, .renewable = true};
    const std::string scope(file->impersonation ? iam_scope : storage_scope);
    auto holding = ask_as_holder(loop, *file, scope, where);
    auto held = co_await std::move(holding);
    if (!held) co_return failure{held.error()};
    token.identity = identity_of(*file);
    if (file->impersonation) {
      auto other = co_await impersonate(loop, *file->impersonation, held->bearer, where);
      if (!other) co_return failure{other.error()};
      held = std::move(*other);
    }
    token.bearer = std::move(held->bearer);
    token.expires = held->expires;
    const auto expires = token.expires;
    co_return expiring<google_token>{std::move(token), expires};
  }

  static std::string identity_of(const google_credential_file& file) {
    if (file.impersonation) return file.impersonation->email;
    if (const auto* const account = std::get_if<google_service_account>(&file.holder))
      return account->email;
    if (const auto* const user = std::get_if<google_user>(&file.holder)) return user->account;
    return detail::printable(std::get<google_external_account>(file.holder).audience, 256);
  }

  task<result<handed_out>> ask_as_holder(storage_loop& loop, const google_credential_file& file,
                                         std::string scope, std::string where) {
    if (const auto* const account = std::get_if<google_service_account>(&file.holder))
      return sign(loop, *account, std::move(scope), std::move(where));
    if (const auto* const user = std::get_if<google_user>(&file.holder))
      return refresh(loop, *user, std::move(where));
    return exchange(loop, std::get<google_external_account>(file.holder), std::move(scope),
                    std::move(where));
  }

  task<result<handed_out>> sign(storage_loop& loop, google_service_account account,
                                std::string scope, std::string where) {
    const system_time now = time_.wall();
    auto signing =
        loop.context.helpers()->run([account = std::move(account), scope = std::move(scope), now] {
          return sign_google_jwt(account.email, account.key_id, account.private_key, scope, now);
        });
    auto token = co_await signing;
    if (!token) co_return failure{about(where, token.error())};
    co_return handed_out{std::move(*token), now + google_jwt_lifetime};
  }

  task<result<handed_out>> refresh(storage_loop& loop, google_user user, std::string where) {
    const std::string form = form_of({{"grant_type", "refresh_token"},
                                      {"client_id", user.client_id},
                                      {"client_secret", user.client_secret},
                                      {"refresh_token", user.refresh_token}});
    const std::string service = name_of(user.token_service);
    auto answer = co_await post(loop, user.token_service, service, form, {});
    if (!answer) co_return failure{answer.error()};
    if (answer->head.status() != 200) {
      co_return failure{refused(*answer, service, "the login in " + where,
                                said_by(*answer, {user.refresh_token, user.client_secret}),
                                std::string(log_in_again))};
    }
    co_return read_token(*answer, service, time_.wall());
  }

  task<result<handed_out>> exchange(storage_loop& loop, google_external_account account,
                                    std::string scope, std::string where) {
    auto subject = co_await subject_token(loop, account, where);
    if (!subject) co_return failure{subject.error()};
    std::string options;
    http_fields fields;
    if (!account.client_id.empty()) {
      fields.emplace_back("Authorization", basic_authorization(account));
    } else if (!account.workforce_project.empty()) {
      options =
          boost::json::serialize(boost::json::object{{"userProject", account.workforce_project}});
    }
    const std::string form =
        form_of({{"grant_type", "urn:ietf:params:oauth:grant-type:token-exchange"},
                 {"audience", account.audience},
                 {"scope", scope},
                 {"requested_token_type", "urn:ietf:params:oauth:token-type:access_token"},
                 {"subject_token", *subject},
                 {"subject_token_type", account.subject_token_type},
                 {"options", options}});
    const std::string service = name_of(account.token_service);
    auto answer = co_await post(loop, account.token_service, service, form, std::move(fields));
    if (!answer) co_return failure{answer.error()};
    if (answer->head.status() != 200) {
      co_return failure{refused(*answer, service, "the subject token of " + where,
                                said_by(*answer, {*subject, account.client_secret}),
                                "check the file's 'audience', and whether the token has run out")};
    }
    co_return read_token(*answer, service, time_.wall());
  }

  /// The token by which somebody else vouches for the holder.
  task<result<std::string>> subject_token(storage_loop& loop, google_external_account account,
                                          std::string where) {
    std::string text;
    std::string from;
    if (account.subject_place) {
      from = name_of(*account.subject_place);
      addressed_request asked{.route = {account.subject_place->origin, network_}, .request = {}};
      asked.request.target = account.subject_place->target();
      asked.request.host = account.subject_place->origin.host_field();
      asked.request.fields = account.subject_fields;
      service_request wanted{.asked = std::move(asked), .about = "the subject token of " + where};
      auto answer = co_await ask_service(loop, std::move(wanted));
      if (!answer) co_return failure{answer.error()};
      if (answer->head.status() != 200) {
        co_return failure{refused(*answer, from, "the request for the subject token of " + where,
                                  {}, "check the file's 'credential_source'")};
      }
      text = std::move(answer->body);
    } else {
      from = detail::printable(account.subject_file, 1024);
      auto read = co_await read_small_file(loop, account.subject_file);
      if (!read) co_return failure{about(where, read.error())};
      if (!*read) {
        co_return failure{error(errc::invalid_request,
                                where + ": the subject token's file " + from + " is not there")};
      }
      text = std::move(**read);
    }
    if (!account.subject_member.empty()) {
      const auto body = parse_json_object(text);
      text = body ? string_of(*body, account.subject_member) : std::string();
    }
    while (!text.empty() && (detail::is_control(text.back()) || text.back() == ' '))
      text.pop_back();
    if (!detail::all(text, detail::is_visible) || text.empty() || text.size() > 4 * longest_token) {
      co_return failure{
          error(errc::invalid_request, where + ": " + from + " holds no subject token")};
    }
    co_return text;
  }

  task<result<handed_out>> impersonate(storage_loop& loop, google_impersonation wanted,
                                       std::string bearer, std::string where) {
    boost::json::array delegates;
    for (const auto& one : wanted.delegates) delegates.emplace_back(one);
    const boost::json::object body{{"delegates", std::move(delegates)},
                                   {"scope", boost::json::array{boost::json::string_view(
                                                 storage_scope.data(), storage_scope.size())}},
                                   {"lifetime", std::to_string(wanted.lifetime.count()) + "s"}};
    const std::string service = name_of(wanted.place);
    addressed_request asked{.route = {wanted.place.origin, network_}, .request = {}};
    asked.request.method = "POST";
    asked.request.target = wanted.place.target();
    asked.request.host = wanted.place.origin.host_field();
    asked.request.fields = {{"Authorization", "Bearer " + bearer},
                            {"Content-Type", "application/json"}};
    asked.request.body = boost::json::serialize(body);
    service_request asking{.asked = std::move(asked), .about = service};
    auto answer = co_await ask_service(loop, std::move(asking));
    if (!answer) co_return failure{answer.error()};
    if (answer->head.status() != 200) {
      co_return failure{
          refused(*answer, service, "to impersonate " + wanted.email + " for " + where,
                  said_by(*answer, {bearer}),
                  "grant the role roles/iam.serviceAccountTokenCreator on that account")};
    }
    const auto members = parse_json_object(answer->body);
    if (!members) co_return no_token(service, *answer);
    handed_out token{.bearer = string_of(*members, "accessToken"), .expires = std::nullopt};
    const auto expires = parse_rfc3339(string_of(*members, "expireTime"));
    if (!is_token(token.bearer) || !expires) co_return no_token(service, *answer);
    token.expires = *expires;
    co_return token;
  }

  [[nodiscard]] addressed_request metadata_request(std::string target) const {
    // Beside the machine: no proxy stands between.
    addressed_request asked{.route = {settings_.metadata, nullptr}, .request = {}};
    asked.request.target = std::move(target);
    asked.request.host = settings_.metadata.host_field();
    asked.request.fields = {{"Metadata-Flavor", "Google"}};
    return asked;
  }

  /// Whether a metadata server of Google's is there. Nobody may be, and networks that drop packets
  /// say so by silence: given up on soon.
  task<result<bool>> finds_metadata(storage_loop& loop) {
    service_request wanted{.asked = metadata_request("/"),
                           .about = "the metadata server",
                           .connect_limit = std::chrono::milliseconds(500),
                           .answer_limit = std::chrono::seconds(2),
                           .retries = 1};
    auto answer = co_await ask_service(loop, std::move(wanted));
    if (!answer) {
      if (answer.error().kind() == errc::cancelled) co_return failure{answer.error()};
      co_return false;
    }
    co_return answer->head.field("Metadata-Flavor") == "Google";
  }

  task<result<expiring<google_token>>> ask_metadata(storage_loop& loop) {
    const std::string service = settings_.metadata_named
                                    ? "the metadata server that GCE_METADATA_HOST names"
                                    : "the metadata server";
    if (!settings_.metadata_named) {
      auto found = co_await finds_metadata(loop);
      if (!found) co_return failure{found.error()};
      if (!*found) co_return none("no credentials were found and no metadata server answers");
    }
    // From here on there is one, and without its answer nobody knows who we are.
    service_request wanted{
        .asked =
            metadata_request("/computeMetadata/v1/instance/service-accounts/default/token?scopes=" +
                             percent_encode(storage_scope, slash::encoded)),
        .about = service};
    auto answer = co_await ask_service(loop, std::move(wanted));
    if (!answer) co_return failure{answer.error()};
    const auto flavor = answer->head.field("Metadata-Flavor");
    if (!flavor || *flavor != "Google") {
      co_return failure{error(errc::protocol_error,
                              service + " is none: its answer lacks 'Metadata-Flavor: Google'",
                              {.peer = answer->peer, .status = answer->head.status()})};
    }
    if (answer->head.status() == 404) co_return none("this machine has no service account");
    if (answer->head.status() != 200) {
      co_return failure{refused(*answer, service, "a token for this machine's service account", {},
                                "check the machine's service account and its access scopes")};
    }
    auto held = read_token(*answer, service, time_.wall());
    if (!held) co_return failure{held.error()};
    google_token token{.bearer = std::move(held->bearer),
                       .source = service,
                       .identity = "the machine's service account",
                       .renewable = true,
                       .expires = held->expires};
    const auto expires = token.expires;
    co_return expiring<google_token>{std::move(token), expires};
  }

  task<result<service_answer>> post(storage_loop& loop, service_place place, std::string service,
                                    std::string form, http_fields fields) {
    addressed_request asked{.route = {place.origin, network_}, .request = {}};
    asked.request.method = "POST";
    asked.request.target = place.target();
    asked.request.host = place.origin.host_field();
    asked.request.fields = std::move(fields);
    asked.request.fields.emplace_back("Content-Type", "application/x-www-form-urlencoded");
    asked.request.body = std::move(form);
    service_request wanted{.asked = std::move(asked), .about = std::move(service)};
    auto answer = co_await ask_service(loop, std::move(wanted));
    co_return answer;
  }

  static std::string name_of(const service_place& place) {
    return "the token service at " + place.origin.host_field();
  }

  static error refused(const service_answer& answer, const std::string& service,
                       const std::string& what, const std::string& said,
                       const std::string& advice) {
    return error(
        errc::access_denied,
        service + " refuses " + what + (said.empty() ? "" : " (" + said + ")") + ": " + advice,
        {.peer = answer.peer, .status = answer.head.status()});
  }

  const google_settings settings_;
  const std::shared_ptr<const network_settings> network_;
  const clock& time_;
};

}  // namespace

std::shared_ptr<expiring_source<google_token>> make_google_token_source(
    google_settings settings, std::shared_ptr<const network_settings> network, const clock& time) {
  return std::make_shared<google_token_source>(std::move(settings), std::move(network), time);
}

}  // namespace headrace
