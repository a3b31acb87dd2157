#include "storage/s3_store.hpp"

#include "storage/aws_key_chain.hpp"
#include "storage/aws_profile_settings.hpp"
#include "storage/http_date.hpp"
#include "storage/listing_request.hpp"
#include "storage/network_environment.hpp"
#include "storage/refreshed.hpp"
#include "storage/s3_address.hpp"
#include "storage/s3_answers.hpp"
#include "storage/sigv4.hpp"
#include "storage/text.hpp"

#include <headrace/base/log.hpp>

#include <algorithm>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

namespace headrace {
namespace {

/// A clock that is further off than this is not believed to be.
constexpr std::chrono::hours most_skew{24 * 366 * 50};

/// What a request was signed with, and for where.
struct s3_basis final : request_basis {
  s3_basis(aws_keys signed_with, std::string signed_for)
      : keys(std::move(signed_with)), region(std::move(signed_for)) {}

  const aws_keys keys;
  const std::string region;
};

using shared_settings = std::shared_ptr<const aws_settings>;

/// The options and variables, completed by the profile.
class settings_source final : public expiring_source<shared_settings> {
 public:
  settings_source(aws_settings given, variable_lookup variable)
      : given_(std::move(given)), variable_(std::move(variable)) {}

  task<result<expiring<shared_settings>>> fetch(storage_loop& loop) override {
    auto completed = co_await with_profile_settings(loop, given_, variable_);
    if (!completed) co_return failure{completed.error()};
    co_return expiring<shared_settings>{std::make_shared<const aws_settings>(std::move(*completed)),
                                        std::nullopt};
  }

 private:
  const aws_settings given_;
  const variable_lookup variable_;
};

/// What is shown of a key id.
std::string shortened(const std::string& id) {
  constexpr std::size_t shown = 4;
  return "…" + (id.size() > 2 * shown ? id.substr(id.size() - shown) : std::string());
}

/// S3 and everything that speaks it.
class s3_store final : public http_object_store {
 public:
  /// `address` is what `location` and `settings` alone lead to.
  s3_store(const uri& location, const s3_address& address, const aws_settings& settings,
           std::shared_ptr<const network_settings> network, const storage_options& options,
           const variable_lookup& variable, const clock& time)
      : where_(location),
        location_(location.display()),
        bucket_(address.bucket),
        place_(object_place::of(address.key)),
        version_(address.version_id),
        network_(std::move(network)),
        fields_(options.headers),
        requester_pays_(options.requester_pays),
        time_(time),
        settings_(std::make_shared<settings_source>(settings, remember_aws_variables(variable)),
                  time),
        keys_(make_aws_key_chain({.given = settings,
                                  .variable = remember_aws_variables(variable),
                                  .network = network_},
                                 time),
              time) {}

  [[nodiscard]] bool lists() const noexcept override { return true; }
  [[nodiscard]] const std::string& single() const noexcept override { return place_.single; }
  [[nodiscard]] const std::string& location() const noexcept override { return location_; }

  [[nodiscard]] std::string uri_of(std::string_view name) const override {
    return "s3://" + bucket_ + "/" + place_.prefix + std::string(name);
  }

  task<result<std::vector<object_entry>>> list(storage_loop& loop, const transfer& terms) override {
    return list_pages(loop, terms, *this, place_, location_,
                      {.make = &make_list_request<listing_depth::direct>,
                       .parse = &parse_s3_page,
                       .limit = max_listing_body});
  }

  task<result<std::vector<object_entry>>> list_all(storage_loop& loop,
                                                   const transfer& terms) override {
    return list_pages(loop, terms, *this, place_, location_,
                      {.make = &make_list_request<listing_depth::everything>,
                       .parse = &parse_s3_page,
                       .limit = max_listing_body});
  }

  task<result<addressed_request>> get(storage_loop& loop, object_request wanted) override {
    request_parts parts{
        .key = place_.prefix + wanted.name, .query = {}, .fields = range_fields(wanted)};
    // A version belongs to the one object that the URI names.
    if (!version_.empty() && wanted.name == place_.single)
      parts.query.emplace_back("versionId", version_);
    auto made = co_await sign(loop, std::move(parts));
    co_return made;
  }

  task<result<credential_report>> credentials(storage_loop& loop) override {
    const auto to = co_await address(loop);
    if (!to) co_return failure{to.error().with({.uri = location_})};
    const auto keys = co_await keys_.get(loop);
    if (!keys) co_return failure{keys.error().with({.uri = location_})};
    credential_report report{
        .source = keys->source,
        .identity = {},
        .expires = keys->expires,
        .details = {{"region", to->region}, {"endpoint", to->scheme + "://" + to->host_field()}}};
    if (keys->credentials) report.identity = shortened(keys->credentials->access_key_id);
    if (!keys->looked_at.empty()) report.details.emplace_back("note", keys->looked_at);
    co_return report;
  }

  [[nodiscard]] store_refusal refused(const http_response_head& head, std::string_view body,
                                      bool pinned) override {
    return refused_with(nullptr, head, body, pinned);
  }

  [[nodiscard]] store_refusal refused_with(const request_basis* basis,
                                           const http_response_head& head, std::string_view body,
                                           bool pinned) override {
    const auto* const made_with = static_cast<const s3_basis*>(basis);
    store_refusal refusal;
    const auto said = parse_s3_error(body);
    if (said) {
      refusal.code = said->code;
      refusal.message = said->message;
      refusal.request_id = said->request_id;
    }
    if (refusal.request_id.empty()) {
      if (const auto id = head.field("x-amz-request-id")) refusal.request_id = *id;
    }
    refusal.what = classify_answer(head.status(), refusal.code);
    refusal.kind = kind_of_answer(head.status(), refusal.code, pinned);
    if (refusal.what == failure_class::clock_skew) learn_clock(head);
    if (refusal.what == failure_class::expired_credentials && made_with != nullptr)
      keys_.refuse(made_with->keys);
    if (refusal.kind == errc::access_denied && made_with != nullptr) {
      if (refusal.message.empty()) refusal.message = "the store refuses";
      refusal.message += with_keys(made_with->keys);
    }

    std::string region = said ? said->region : "";
    if (const auto field = head.field("x-amz-bucket-region")) region = *field;
    if (!region.empty() && (owns_redirect(head) || head.status() == 400 || head.status() == 403)) {
      // Another request may have learned the region meanwhile: what counts is where this one went.
      const bool news = made_with == nullptr || made_with->region != region;
      // A redirect to where the request went ends at the hop limit.
      refusal.ask_again = is_in(region, news) && (news || owns_redirect(head));
    }
    return refusal;
  }

  [[nodiscard]] bool owns_redirect(const http_response_head& head) const noexcept override {
    return head.status() == 301 || head.status() == 307;
  }

  [[nodiscard]] std::shared_ptr<const network_settings> network() const noexcept override {
    return network_;
  }

 private:
  /// What a request asks for; without a key the bucket.
  struct request_parts {
    std::optional<std::string> key;
    std::vector<std::pair<std::string, std::string>> query;
    http_fields fields;
  };

  template <listing_depth depth>
  static task<result<addressed_request>> make_list_request(http_object_store& store,
                                                           storage_loop& loop, std::string token) {
    auto& self = static_cast<s3_store&>(store);
    request_parts parts{
        .key = {},
        .query = {{"encoding-type", "url"}, {"list-type", "2"}, {"prefix", self.place_.prefix}},
        .fields = {}};
    if (depth == listing_depth::direct) parts.query.emplace_back("delimiter", "/");
    if (!token.empty()) parts.query.emplace_back("continuation-token", std::move(token));
    auto made = co_await self.sign(loop, std::move(parts));
    co_return made;
  }

  /// Where the bucket is, as far as it is known by now.
  task<result<s3_address>> address(storage_loop& loop) {
    if (auto known = known_address()) co_return *std::move(known);
    const auto settings = co_await settings_.get(loop);
    if (!settings) co_return failure{settings.error()};
    auto made = make_s3_address(where_, **settings);
    if (!made) co_return failure{made.error()};
    const std::lock_guard lock(mutex_);
    if (!address_) address_ = std::move(*made);
    co_return *address_;
  }

  [[nodiscard]] std::optional<s3_address> known_address() const {
    const std::lock_guard lock(mutex_);
    return address_;
  }

  task<result<addressed_request>> sign(storage_loop& loop, request_parts parts) {
    const auto found = co_await address(loop);
    if (!found) co_return failure{found.error()};
    const s3_address& to = *found;
    auto keys = co_await keys_.get(loop);
    if (!keys) co_return failure{keys.error()};
    addressed_request made{
        .route = {{.scheme = to.scheme, .host = to.host, .port = to.port}, network_},
        .request = {},
        .basis = std::make_shared<const s3_basis>(*keys, to.region)};
    const std::string path = parts.key ? to.object_path(*parts.key) : to.bucket_path();
    made.request.host = to.host_field();
    const std::string encoded = canonical_query(parts.query);
    made.request.target = encoded.empty() ? path : path + "?" + encoded;
    made.request.fields = std::move(parts.fields);
    made.request.fields.insert(made.request.fields.end(), fields_.begin(), fields_.end());
    if (keys->credentials) {
      // Nobody can be made to pay without a signature.
      if (requester_pays_) made.request.fields.emplace_back("x-amz-request-payer", "requester");
      sign(made.request, to, path, parts.query, *keys->credentials);
    }
    co_return made;
  }

  void sign(http_request& request, const s3_address& to, const std::string& path,
            const std::vector<std::pair<std::string, std::string>>& query,
            const aws_credentials& credentials) {
    std::chrono::nanoseconds offset{};
    {
      const std::lock_guard lock(mutex_);
      offset = clock_offset_;
    }
    // S3 refuses fields of its own that the signature does not cover.
    http_fields covered;
    for (const auto& field : request.fields) {
      if (detail::lower(field.first).starts_with("x-amz-")) covered.push_back(field);
    }
    const signable_request signable{.host = request.host,
                                    .path = path,
                                    .query = query,
                                    .headers = covered,
                                    .region = to.region};
    const auto now = time_.wall() + std::chrono::duration_cast<system_time::duration>(offset);
    for (auto& field : signer_.sign(signable, credentials, now))
      request.fields.push_back(std::move(field));
  }

  /// What to add to a refusal, so that whoever reads it knows whose keys are refused.
  static std::string with_keys(const aws_keys& keys) {
    if (keys.credentials) return " (the keys are those of " + keys.source + ")";
    if (!keys.looked_at.empty()) return " (the request was not signed: " + keys.looked_at + ")";
    return " (keys: " + keys.source + ")";
  }

  /// Whether the bucket is asked in `region` from now on. Goes there where that is news.
  [[nodiscard]] bool is_in(std::string_view region, bool news) {
    const std::lock_guard lock(mutex_);
    if (!address_) return false;
    if (address_->region == region) return true;
    if (!news) return false;
    auto moved = address_->in_region(region);
    if (!moved) return false;
    address_ = std::move(*moved);
    return true;
  }

  void learn_clock(const http_response_head& head) {
    const auto field = head.field("Date");
    if (!field) return;
    // In whole seconds: nanoseconds do not reach to all the years that a date may name.
    const auto now = std::chrono::floor<std::chrono::seconds>(time_.wall());
    const auto theirs = parse_http_date(*field, now);
    if (!theirs) return;
    const std::chrono::seconds offset = *theirs - now;
    if (offset > most_skew || offset < -most_skew) return;
    const std::lock_guard lock(mutex_);
    clock_offset_ = offset;
  }

  const uri where_;
  const std::string location_;
  const std::string bucket_;
  const object_place place_;
  const std::string version_;
  const std::shared_ptr<const network_settings> network_;
  const http_fields fields_;
  const bool requester_pays_;
  const clock& time_;
  refreshed<shared_settings> settings_;
  refreshed<aws_keys> keys_;
  sigv4_signer signer_;

  mutable std::mutex mutex_;
  std::optional<s3_address> address_;  ///< Nothing before the first request.
  std::chrono::nanoseconds clock_offset_{0};
};

}  // namespace

result<std::shared_ptr<object_store>> open_s3_store(const uri& location,
                                                    const storage_options& options,
                                                    const variable_lookup& variable,
                                                    const clock& time) {
  auto settings = read_aws_settings(options, variable);
  if (!settings) return failure{settings.error()};
  auto address = make_s3_address(location, *settings);
  if (!address) return failure{address.error()};
  if (address->key.find_first_not_of('/') == std::string::npos) {
    return failure{error(errc::invalid_request,
                         "a bucket without a prefix: name the model's prefix, as in s3://" +
                             address->bucket + "/path/to/model")};
  }
  return std::make_shared<s3_store>(location, *address, *settings,
                                    read_network_settings(options, variable), options, variable,
                                    time);
}

result<std::shared_ptr<object_store>> make_s3_store(const uri& location,
                                                    const storage_options& options) {
  return open_s3_store(location, options, &process_variable);
}

}  // namespace headrace
