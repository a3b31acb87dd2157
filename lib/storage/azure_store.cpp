#include "storage/azure_store.hpp"

#include "storage/azure_address.hpp"
#include "storage/azure_answers.hpp"
#include "storage/azure_credentials.hpp"
#include "storage/azure_environment.hpp"
#include "storage/http_date.hpp"
#include "storage/listing_request.hpp"
#include "storage/network_environment.hpp"
#include "storage/shared_key.hpp"
#include "storage/sigv4.hpp"
#include "storage/text.hpp"
#include "storage/xml_answer.hpp"

#include <algorithm>
#include <mutex>
#include <optional>
#include <utility>
#include <variant>

namespace headrace {
namespace {

/// The first version that says which names are encoded.
constexpr const char* service_version = "2021-02-12";

/// Azure takes signatures whose time is not further than this from its own.
constexpr std::chrono::minutes tolerated_skew{15};

/// A clock that is further off is not believed to be one.
constexpr std::chrono::years most_skew{100};

/// What the ids of our requests begin with.
constexpr std::string_view token_id = "headrace-token-";
constexpr const char* request_id_field = "x-ms-client-request-id";

using parameters = std::vector<std::pair<std::string, std::string>>;

/// Azure Blob Storage, and its emulator.
class azure_store final : public http_object_store {
 public:
  azure_store(const uri& location, azure_location named, azure_settings settings,
              std::shared_ptr<const network_settings> network, http_fields fields)
      : location_(location.display()),
        base_(location.scheme + "://" + location.authority + "/"),
        place_(object_place::of(std::move(named.key))),
        address_{std::move(settings.endpoint), std::move(named.container)},
        source_(std::move(settings.source)),
        network_(std::move(network)),
        fields_(std::move(fields)) {
    auto& credential = settings.credential;
    if (auto* const key = std::get_if<azure_account_key>(&credential)) {
      signer_.emplace(address_.endpoint.account, std::move(key->key));
    } else if (auto* const sas = std::get_if<sas_token>(&credential)) {
      sas_ = std::move(*sas);
    } else if (auto* const bearer = std::get_if<azure_bearer>(&credential)) {
      bearer_ = std::move(bearer->token);
    } else if (auto* const entra = std::get_if<entra_settings>(&credential)) {
      client_id_ = entra->client_id;
      tokens_.emplace(make_entra_source(std::move(*entra), network_));
    } else {
      wants_none_ = std::get<azure_anonymous>(credential).wanted;
    }
  }

  [[nodiscard]] bool lists() const noexcept override { return true; }
  [[nodiscard]] const std::string& single() const noexcept override { return place_.single; }
  [[nodiscard]] const std::string& location() const noexcept override { return location_; }

  [[nodiscard]] std::string uri_of(std::string_view name) const override {
    return base_ + place_.prefix + std::string(name);
  }

  task<result<std::vector<object_entry>>> list(storage_loop& loop, const transfer& terms) override {
    return list_pages(loop, terms, *this, place_, location_,
                      {.make = &make_list_request<listing_depth::direct>,
                       .parse = &parse_azure_page,
                       .limit = max_azure_listing_body});
  }

  task<result<std::vector<object_entry>>> list_all(storage_loop& loop,
                                                   const transfer& terms) override {
    return list_pages(loop, terms, *this, place_, location_,
                      {.make = &make_list_request<listing_depth::everything>,
                       .parse = &parse_azure_page,
                       .limit = max_azure_listing_body});
  }

  task<result<addressed_request>> get(storage_loop& loop, object_request wanted) override {
    auto made = co_await prepare(loop, address_.blob_path(place_.prefix + wanted.name), {},
                                 range_fields(wanted));
    co_return made;
  }

  [[nodiscard]] store_refusal refused(const http_response_head& head, std::string_view body,
                                      bool pinned) override {
    store_refusal refusal;
    const auto said = parse_azure_error(body);
    if (said) {
      refusal.code = said->code;
      refusal.message = said->message;
    }
    if (const auto code = head.field("x-ms-error-code"))
      refusal.code = detail::if_visible(std::string(*code), 64);
    if (const auto id = head.field("x-ms-request-id"))
      refusal.request_id = detail::if_visible(std::string(*id), 128);
    refusal.what = classify_answer(head.status(), refusal.code);
    refusal.kind = kind_of_answer(head.status(), refusal.code, pinned);
    const bool unauthenticated = refusal.code == "AuthenticationFailed" ||
                                 refusal.code == "InvalidAuthenticationInfo" ||
                                 refusal.code == "NoAuthenticationInformation";
    if (unauthenticated || refusal.code == "PublicAccessNotPermitted")
      refusal.kind = errc::access_denied;

    if (unauthenticated || head.status() == 401) {
      if (tokens_ && refuse_token(head)) {
        refusal.what = failure_class::expired_credentials;
      } else if (signer_ && learn_clock(head)) {
        refusal.what = failure_class::clock_skew;
      }
    }
    const std::string hint = hint_for(head.status(), refusal);
    if (!hint.empty())
      refusal.message += (refusal.message.empty() ? "the server refuses: " : "; ") + hint;
    return refusal;
  }

  [[nodiscard]] bool owns_redirect(const http_response_head&) const noexcept override {
    return false;
  }

  [[nodiscard]] std::shared_ptr<const network_settings> network() const noexcept override {
    return network_;
  }

  task<result<credential_report>> credentials(storage_loop& loop) override {
    credential_report report;
    report.source = source_;
    const blob_endpoint& endpoint = address_.endpoint;
    if (!endpoint.account.empty()) report.details.emplace_back("account", endpoint.account);
    report.details.emplace_back("endpoint", endpoint.origin.to_string() + endpoint.path);
    report.details.emplace_back("container", address_.container);
    if (signer_) report.identity = endpoint.account;
    if (sas_) {
      report.expires = sas_->expires;
      if (!sas_->permissions.empty()) report.details.emplace_back("permissions", sas_->permissions);
    }
    if (tokens_) {
      auto token = co_await tokens_->get(loop);
      if (!token) co_return failure{token.error().with({.uri = location_})};
      report.identity = client_id_;
      report.expires = token->expires;
      if (token->value.empty())
        report.source = "none: requests are anonymous (" + source_ + " gives none)";
    }
    co_return report;
  }

 private:
  template <listing_depth depth>
  static task<result<addressed_request>> make_list_request(http_object_store& store,
                                                           storage_loop& loop, std::string marker) {
    auto& self = static_cast<azure_store&>(store);
    parameters query = {{"comp", "list"},
                        {"include", "metadata"},  // directories are marked there
                        {"maxresults", std::to_string(max_azure_page)},
                        {"prefix", self.place_.prefix},
                        {"restype", "container"}};
    if (depth == listing_depth::direct) query.emplace_back("delimiter", "/");
    if (!marker.empty()) query.emplace_back("marker", std::move(marker));
    auto made = co_await self.prepare(loop, self.address_.container_path(), std::move(query), {});
    co_return made;
  }

  task<result<addressed_request>> prepare(storage_loop& loop, std::string path, parameters query,
                                          http_fields extra) {
    addressed_request made{.route = {address_.endpoint.origin, network_}, .request = {}};
    made.request.host = address_.endpoint.origin.host_field();
    made.request.target = path;
    std::string encoded = canonical_query(query);
    if (sas_) encoded += (encoded.empty() ? "" : "&") + sas_->query;
    if (!encoded.empty()) made.request.target += '?' + encoded;

    http_fields& fields = made.request.fields;
    fields = std::move(extra);
    fields.insert(fields.end(), fields_.begin(), fields_.end());
    fields.emplace_back("x-ms-version", service_version);
    fields.emplace_back("x-ms-date", ms_date(real_clock().wall() + clock_offset()));
    if (signer_) {
      const shared_key_request signable{.path = path, .query = query, .fields = fields};
      fields.emplace_back("Authorization", signer_->authorize(signable));
    } else if (!bearer_.empty()) {
      fields.emplace_back("Authorization", "Bearer " + bearer_);
    } else if (tokens_) {
      auto token = co_await tokens_->get(loop);
      if (!token) co_return failure{token.error()};
      std::string id = note_token(*token);
      const bool has_id = std::ranges::any_of(fields, [](const auto& field) {
        return detail::same_name(field.first, request_id_field);
      });
      if (!has_id) fields.emplace_back(request_id_field, std::move(id));
      if (!token->value.empty()) fields.emplace_back("Authorization", "Bearer " + token->value);
    }
    co_return made;
  }

  /// Azure gives back the id of a request, so that a refusal tells which token it is about: that of
  /// many requests at once is thrown away once.
  [[nodiscard]] std::string note_token(const entra_token& token) {
    const std::lock_guard lock(mutex_);
    if (token != token_) {
      token_ = token;
      ++token_number_;
    }
    return id_of_token();
  }

  [[nodiscard]] std::string id_of_token() const {
    return std::string(token_id) + std::to_string(token_number_);
  }

  /// Whether it is worth asking again: not where there was no token.
  [[nodiscard]] bool refuse_token(const http_response_head& head) {
    std::unique_lock lock(mutex_);
    if (token_.value.empty()) return false;
    const auto id = head.field(request_id_field);
    if (id && id->starts_with(token_id) && *id != id_of_token())
      return true;  // another has come since
    const entra_token used = token_;
    lock.unlock();
    tokens_->refuse(used);
    return true;
  }

  [[nodiscard]] std::chrono::seconds clock_offset() const {
    const std::lock_guard lock(mutex_);
    return clock_offset_;
  }

  /// Whether our clock explains the refusal of a signature. Then the next one is made by theirs.
  [[nodiscard]] bool learn_clock(const http_response_head& head) {
    const auto field = head.field("Date");
    if (!field) return false;
    // In whole seconds: nanoseconds do not reach to all the years that a date may name.
    const auto now = std::chrono::floor<std::chrono::seconds>(real_clock().wall());
    const auto theirs = parse_http_date(*field, now);
    if (!theirs) return false;
    const std::chrono::seconds offset = *theirs - now;
    if (offset > most_skew || offset < -most_skew) return false;
    const std::lock_guard lock(mutex_);
    const auto off = offset - clock_offset_;
    if (off < tolerated_skew && off > -tolerated_skew) return false;
    clock_offset_ = offset;
    return true;
  }

  /// What to do about a refusal, where that can be told. Names variables, never values.
  [[nodiscard]] std::string hint_for(int status, const store_refusal& refusal) const {
    const bool unauthenticated = refusal.code == "AuthenticationFailed" ||
                                 refusal.code == "InvalidAuthenticationInfo" || status == 401;
    const bool unauthorised = refusal.code == "AuthorizationPermissionMismatch" ||
                              refusal.code == "InsufficientAccountPermissions";
    if (refusal.code == "KeyBasedAuthenticationNotPermitted")
      return "the account takes no keys: use an identity of Microsoft Entra";
    if (refusal.code == "BlobArchived")
      return "the blob is in the archive tier: move it to another tier first";
    if (is_anonymous()) {
      // A private container is hidden from strangers: 404.
      if (wants_none_ || (status != 401 && status != 403 && status != 404 && status != 409))
        return {};
      return "no credentials were found, so requests are anonymous: set "
             "AZURE_STORAGE_CONNECTION_STRING, AZURE_STORAGE_ACCOUNT_KEY or "
             "AZURE_STORAGE_SAS_TOKEN, or run where there is a managed identity";
    }
    // Network rules for Azure itself, wrong keys as well for its emulator.
    const bool kept_out = refusal.code == "AuthorizationFailure";
    if (sas_ && (unauthenticated || unauthorised || kept_out))
      return hint_for_sas(unauthorised, kept_out);
    if (kept_out) return check_network();
    if (unauthorised && (tokens_ || !bearer_.empty()))
      return "give the identity the role Storage Blob Data Reader (" + source_ + ")";
    if (!unauthenticated) return {};
    if (signer_) {
      const auto off = std::chrono::duration_cast<std::chrono::minutes>(clock_offset()).count();
      if (off != 0) {
        return "this machine's clock is " + std::to_string(off < 0 ? -off : off) + " minutes " +
               (off < 0 ? "ahead of" : "behind") + " the store's: set it right";
      }
      return "check that " + source_ + " is of the account '" + address_.endpoint.account + "'";
    }
    return "the token has run out or is not for Azure Storage (" + source_ + ")";
  }

  [[nodiscard]] std::string hint_for_sas(bool unauthorised, bool kept_out) const {
    const auto now = real_clock().wall();
    if (sas_->expires && *sas_->expires < now)
      return "it ran out " + ms_date(*sas_->expires) + ": make a new one (" + source_ + ")";
    if (sas_->starts && *sas_->starts > now)
      return "it holds only from " + ms_date(*sas_->starts) + " on (" + source_ + ")";
    if (unauthorised) return "it has to permit reading and listing, sp=rl (" + source_ + ")";
    return kept_out ? check_network() : "check " + source_;
  }

  [[nodiscard]] std::string check_network() const {
    return "check " + source_ + ", and whether the account's network rules let this machine in";
  }

  [[nodiscard]] bool is_anonymous() const {
    if (signer_ || sas_ || !bearer_.empty()) return false;
    const std::lock_guard lock(mutex_);
    return !tokens_ || token_.value.empty();
  }

  const std::string location_;
  const std::string base_;  ///< Of the URIs of objects.
  const object_place place_;
  const azure_address address_;
  const std::string source_;
  const std::shared_ptr<const network_settings> network_;
  const http_fields fields_;

  // One of these, or none.
  std::optional<shared_key_signer> signer_;
  std::optional<sas_token> sas_;
  std::string bearer_;
  std::optional<refreshed<entra_token>> tokens_;
  std::string client_id_;
  bool wants_none_ = false;

  mutable std::mutex mutex_;
  entra_token token_;  ///< The last one that was sent.
  std::uint64_t token_number_ = 0;
  std::chrono::seconds clock_offset_{0};
};

}  // namespace

result<std::shared_ptr<object_store>> make_azure_store_from(const uri& location,
                                                            const storage_options& options,
                                                            const variable_lookup& variable) {
  auto named = parse_azure_location(location);
  if (!named) return failure{named.error()};
  if (named->key.find_first_not_of('/') == std::string::npos) {
    return failure{error(errc::invalid_request,
                         "a container without a prefix: name the model's prefix, as in " +
                             location.scheme + "://" + location.authority + "/path/to/model")};
  }
  auto settings = read_azure_settings(*named, options, variable);
  if (!settings) return failure{settings.error()};
  return std::make_shared<azure_store>(location, std::move(*named), std::move(*settings),
                                       read_network_settings(options, variable), options.headers);
}

result<std::shared_ptr<object_store>> make_azure_store(const uri& location,
                                                       const storage_options& options) {
  return make_azure_store_from(location, options, &process_variable);
}

}  // namespace headrace
