#include "storage/gcs_store.hpp"

#include "storage/listing_request.hpp"
#include "storage/network_environment.hpp"
#include "storage/percent.hpp"
#include "storage/s3_answers.hpp"
#include "storage/text.hpp"

#include <algorithm>
#include <mutex>
#include <utility>

namespace headrace {
namespace {

/// Google Cloud Storage by its XML API, which serves ranges and lists as S3 does.
class gcs_store final : public http_object_store {
 public:
  gcs_store(const uri& location, google_settings settings,
            std::shared_ptr<const network_settings> network, const storage_options& options,
            const clock& time)
      : location_(location.display()),
        bucket_(location.authority),
        place_(object_place::of(location.path)),
        endpoint_(settings.endpoint),
        project_(settings.project),
        requester_pays_(options.requester_pays),
        network_(std::move(network)),
        fields_(options.headers),
        has_own_authorization_(std::ranges::any_of(
            fields_,
            [](const auto& field) { return detail::same_name(field.first, "authorization"); })),
        tokens_(make_google_token_source(std::move(settings), network_, time), time) {}

  [[nodiscard]] bool lists() const noexcept override { return true; }
  [[nodiscard]] const std::string& single() const noexcept override { return place_.single; }
  [[nodiscard]] const std::string& location() const noexcept override { return location_; }

  [[nodiscard]] std::string uri_of(std::string_view name) const override {
    return "gs://" + bucket_ + "/" + place_.prefix + std::string(name);
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
    const std::string target = "/" + bucket_ + "/" + percent_encode(place_.prefix + wanted.name);
    std::string query;
    http_fields fields;
    if (wanted.pin && !wanted.pin->generation.empty()) {
      // An overwritten generation is not there any more, or still the same: no condition is needed.
      query = "generation=" + wanted.pin->generation;
      fields.emplace_back("Range", wanted.range);
    } else {
      fields = range_fields(wanted);
    }
    auto made = co_await request(loop, target, std::move(query), std::move(fields));
    co_return made;
  }

  [[nodiscard]] object_version version_of(const http_response_head& head,
                                          std::uint64_t total) const override {
    auto version = object_version::of(head, total);
    const auto generation = head.field("x-goog-generation");
    if (generation && !generation->empty() && generation->size() <= 20 &&
        detail::all(*generation, detail::is_digit)) {
      version.generation = *generation;
    }
    return version;
  }

  [[nodiscard]] store_refusal refused(const http_response_head& head, std::string_view body,
                                      bool pinned) override {
    store_refusal refusal;
    if (const auto said = parse_s3_error(body)) {
      refusal.code = said->code;
      refusal.message = said->message;
      refusal.request_id = said->request_id;
    }
    if (const auto id = head.field("x-guploader-uploadid"); id && refusal.request_id.empty())
      refusal.request_id = detail::printable(*id, 128);
    refusal.what = classify_answer(head.status(), refusal.code);
    refusal.kind = kind_of_answer(head.status(), refusal.code, pinned);
    const auto token = last_token();
    if (head.status() == 401 && token && token->renewable) {
      // It may have been revoked, or the clocks disagree: once with another one.
      tokens_.refuse(*token);
      refusal.what = failure_class::expired_credentials;
    }
    if (refusal.code == "UserProjectMissing") {
      refusal.message =
          "the bucket's owner lets the requester pay: set the option requester_pays, and "
          "GOOGLE_CLOUD_PROJECT to the project that pays";
    } else if (refusal.kind == errc::access_denied) {
      refusal.message = (refusal.message.empty() ? "access denied" : refusal.message) +
                        who_asked(token ? *token : google_token());
    }
    return refusal;
  }

  [[nodiscard]] bool owns_redirect(const http_response_head&) const noexcept override {
    return false;
  }

  [[nodiscard]] std::shared_ptr<const network_settings> network() const noexcept override {
    return network_;
  }

  task<result<credential_report>> credentials(storage_loop& loop) override {
    auto token = co_await this->token(loop);
    if (!token) co_return failure{token.error()};
    credential_report report{.source = token->source,
                             .identity = token->identity,
                             .expires = token->expires,
                             .details = {}};
    report.details.emplace_back("endpoint", endpoint_.origin.to_string());
    if (requester_pays_) {
      const std::string& project = project_.empty() ? token->project : project_;
      report.details.emplace_back("project that pays", project.empty() ? "not known" : project);
    }
    co_return report;
  }

 private:
  template <listing_depth depth>
  static task<result<addressed_request>> make_list_request(http_object_store& store,
                                                           storage_loop& loop, std::string token) {
    auto& self = static_cast<gcs_store&>(store);
    std::string query = depth == listing_depth::direct ? "delimiter=%2F&" : "";
    query += "encoding-type=url&list-type=2&prefix=" +
             percent_encode(self.place_.prefix, slash::encoded);
    if (!token.empty()) query += "&continuation-token=" + percent_encode(token, slash::encoded);
    auto made = co_await self.request(loop, "/" + self.bucket_, std::move(query), {});
    co_return made;
  }

  task<result<addressed_request>> request(storage_loop& loop, std::string target, std::string query,
                                          http_fields fields) {
    auto token = co_await this->token(loop);
    if (!token) co_return failure{token.error()};
    addressed_request made{.route = {endpoint_.origin, network_}, .request = {}};
    made.request.target = endpoint_.path + target + (query.empty() ? "" : "?" + query);
    made.request.host = endpoint_.origin.host_field();
    made.request.fields = std::move(fields);
    made.request.fields.insert(made.request.fields.end(), fields_.begin(), fields_.end());
    // A user who names the field himself knows better.
    if (!token->bearer.empty() && !has_own_authorization_) {
      made.request.fields.emplace_back("Authorization", "Bearer " + token->bearer);
    }
    if (requester_pays_) {
      const std::string& project = project_.empty() ? token->project : project_;
      if (project.empty()) {
        co_return failure{error(errc::invalid_request,
                                "requester_pays is set, but nobody says which project pays: set "
                                "GOOGLE_CLOUD_PROJECT",
                                {.uri = location_})};
      }
      made.request.fields.emplace_back("x-goog-user-project", project);
    }
    co_return made;
  }

  task<result<google_token>> token(storage_loop& loop) {
    auto token = co_await tokens_.get(loop);
    if (!token) co_return failure{token.error().with({.uri = location_})};
    if (!token->bearer.empty()) {
      if (auto kept = check_keeps_secrets(endpoint_.origin); !kept)
        co_return failure{kept.error().with({.uri = location_})};
    }
    const std::lock_guard lock(mutex_);
    last_token_ = *token;
    co_return token;
  }

  [[nodiscard]] std::optional<google_token> last_token() const {
    const std::lock_guard lock(mutex_);
    return last_token_;
  }

  static std::string who_asked(const google_token& token) {
    if (token.bearer.empty()) {
      return " (no credentials were sent: set GOOGLE_APPLICATION_CREDENTIALS, or run 'gcloud auth "
             "application-default login')";
    }
    return " (the credentials are from " + token.source +
           (token.identity.empty() ? "" : ", of " + token.identity) + ")";
  }

  const std::string location_;
  const std::string bucket_;
  const object_place place_;
  const service_place endpoint_;
  const std::string project_;  ///< That the environment names; may be empty.
  const bool requester_pays_;
  const std::shared_ptr<const network_settings> network_;
  const http_fields fields_;
  const bool has_own_authorization_;
  refreshed<google_token> tokens_;

  mutable std::mutex mutex_;
  std::optional<google_token> last_token_;  ///< What the last request carried.
};

/// Google's rules (3 to 63 characters, 222 with dots) with room for emulators.
bool is_bucket(std::string_view name) noexcept {
  return !name.empty() && name.size() <= 222 && detail::is_alphanumeric(name.front()) &&
         detail::is_alphanumeric(name.back()) && detail::all(name, [](char c) {
           return detail::is_digit(c) || (c >= 'a' && c <= 'z') || c == '-' || c == '_' || c == '.';
         });
}

}  // namespace

result<std::shared_ptr<object_store>> make_gcs_store(const uri& location,
                                                     const storage_options& options,
                                                     const variable_lookup& variable,
                                                     const clock& time) {
  const auto refused = [](const char* why) { return failure{error(errc::invalid_request, why)}; };
  if (!location.user_info.empty()) {
    return refused(
        "a bucket has no '@' in its name, and keys do not belong into a URI: expected "
        "gs://bucket/prefix");
  }
  if (!is_bucket(location.authority)) {
    return refused(
        "no name of a bucket: Google's hold lower-case letters, digits, '-', '_' and "
        "'.', as in gs://my-models/path/to/model");
  }
  if (location.path.find_first_not_of('/') == std::string::npos) {
    return failure{error(errc::invalid_request,
                         "a bucket without a prefix: name the model's prefix, as in gs://" +
                             location.authority + "/path/to/model")};
  }
  auto settings = read_google_settings(options, variable);
  if (!settings) return failure{settings.error()};
  return std::make_shared<gcs_store>(location, std::move(*settings),
                                     read_network_settings(options, variable), options, time);
}

result<std::shared_ptr<object_store>> make_gcs_store(const uri& location,
                                                     const storage_options& options) {
  return make_gcs_store(location, options, &process_variable);
}

}  // namespace headrace
