#include "storage/http_date.hpp"
#include "storage/http_object_store.hpp"
#include "storage/listing_request.hpp"
#include "storage/network_environment.hpp"
#include "storage/s3_address.hpp"
#include "storage/s3_answers.hpp"
#include "storage/sigv4.hpp"

#include <headrace/base/log.hpp>

#include <algorithm>
#include <mutex>

namespace headrace {
namespace {

/// Pages of a listing before it is taken for one without an end.
constexpr std::size_t page_limit = 10'000;

/// S3 and everything that speaks it.
class s3_store final : public http_object_store {
 public:
  s3_store(const uri& location, s3_address address, aws_settings settings,
           std::shared_ptr<const network_settings> network, http_fields fields)
      : location_(location.display()),
        prefix_(address.key),
        version_(address.version_id),
        settings_(std::move(settings)),
        network_(std::move(network)),
        fields_(std::move(fields)),
        address_(std::move(address)) {
    while (!prefix_.empty() && prefix_.back() == '/') prefix_.pop_back();
    if (prefix_.ends_with(".safetensors")) {
      const auto slash = prefix_.rfind('/');
      single_ = slash == std::string::npos ? prefix_ : prefix_.substr(slash + 1);
      prefix_.resize(slash == std::string::npos ? 0 : slash);
    }
    if (!prefix_.empty()) prefix_ += '/';
  }

  [[nodiscard]] bool lists() const noexcept override { return true; }
  [[nodiscard]] const std::string& single() const noexcept override { return single_; }
  [[nodiscard]] const std::string& location() const noexcept override { return location_; }

  [[nodiscard]] std::string uri_of(std::string_view name) const override {
    return "s3://" + address().bucket + "/" + prefix_ + std::string(name);
  }

  task<result<std::vector<object_entry>>> list(storage_loop& loop, const transfer& terms) override {
    std::vector<object_entry> found;
    std::string token;
    for (std::size_t page = 0; page < page_limit; ++page) {
      auto body = co_await fetch_text(
          loop, terms, *this, location_,
          {.make = &make_list_request, .argument = token, .limit = max_listing_body});
      if (!body) co_return failure{body.error()};
      auto listing = parse_s3_listing(*body);
      if (!listing) co_return failure{listing.error().with({.uri = location_})};
      for (auto& object : listing->objects) {
        if (object.key.size() <= prefix_.size() || !object.key.starts_with(prefix_)) continue;
        found.push_back({object.key.substr(prefix_.size()), object.size});
      }
      if (!listing->is_truncated) {
        std::ranges::sort(found, {}, &object_entry::name);
        co_return found;
      }
      token = std::move(listing->next_continuation_token);
    }
    co_return failure{
        error(errc::protocol_error, "a listing that does not end", {.uri = location_})};
  }

  task<result<addressed_request>> get(storage_loop&, object_request wanted) override {
    const std::string& name = wanted.name;
    std::vector<std::pair<std::string, std::string>> query;
    // A version belongs to the one object that the URI names.
    if (!version_.empty() && name == single_) query.emplace_back("versionId", version_);
    co_return sign(address().object_path(prefix_ + name), query, range_fields(wanted));
  }

  [[nodiscard]] store_refusal refused(const http_response_head& head, std::string_view body,
                                      bool pinned) override {
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

    std::string region = said ? said->region : "";
    if (const auto field = head.field("x-amz-bucket-region")) region = *field;
    if (!region.empty() && (owns_redirect(head) || head.status() == 400 || head.status() == 403)) {
      // A redirect to where we are by now: another request has learned the region meanwhile. The
      // hop limit ends it otherwise.
      refusal.ask_again = move_to(region) || (owns_redirect(head) && address().region == region);
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
  static task<result<addressed_request>> make_list_request(http_object_store& store, storage_loop&,
                                                           std::string token) {
    auto& self = static_cast<s3_store&>(store);
    std::vector<std::pair<std::string, std::string>> query = {
        {"delimiter", "/"}, {"encoding-type", "url"}, {"list-type", "2"}, {"prefix", self.prefix_}};
    if (!token.empty()) query.emplace_back("continuation-token", std::move(token));
    co_return self.sign(self.address().bucket_path(), query, {});
  }

  /// A copy: the region may be learned meanwhile.
  [[nodiscard]] s3_address address() const {
    const std::lock_guard lock(mutex_);
    return address_;
  }

  [[nodiscard]] result<addressed_request> sign(
      std::string path, const std::vector<std::pair<std::string, std::string>>& query,
      http_fields extra) {
    const s3_address to = address();
    addressed_request made{
        .route = {{.scheme = to.scheme, .host = to.host, .port = to.port}, network_},
        .request = {}};
    made.request.host = to.host_field();
    const std::string encoded = canonical_query(query);
    made.request.target = encoded.empty() ? path : path + "?" + encoded;
    made.request.fields = std::move(extra);
    made.request.fields.insert(made.request.fields.end(), fields_.begin(), fields_.end());
    if (settings_.credentials) {
      std::chrono::nanoseconds offset{};
      {
        const std::lock_guard lock(mutex_);
        offset = clock_offset_;
      }
      const signable_request signable{
          .host = made.request.host, .path = path, .query = query, .region = to.region};
      const auto now =
          real_clock().wall() + std::chrono::duration_cast<system_time::duration>(offset);
      for (auto& field : signer_.sign(signable, *settings_.credentials, now)) {
        made.request.fields.push_back(std::move(field));
      }
    }
    return made;
  }

  /// Whether the region is news.
  [[nodiscard]] bool move_to(std::string_view region) {
    const std::lock_guard lock(mutex_);
    if (address_.region == region) return false;
    auto moved = address_.in_region(region);
    if (!moved) return false;
    address_ = std::move(*moved);
    return true;
  }

  void learn_clock(const http_response_head& head) {
    const auto field = head.field("Date");
    if (!field) return;
    const auto theirs =
        parse_http_date(*field, std::chrono::floor<std::chrono::seconds>(real_clock().wall()));
    if (!theirs) return;
    const std::lock_guard lock(mutex_);
    clock_offset_ = *theirs - real_clock().wall();
  }

  const std::string location_;
  std::string prefix_;  ///< Empty, or with a `/` at its end.
  const std::string version_;
  std::string single_;
  const aws_settings settings_;
  const std::shared_ptr<const network_settings> network_;
  const http_fields fields_;
  sigv4_signer signer_;

  mutable std::mutex mutex_;
  s3_address address_;
  std::chrono::nanoseconds clock_offset_{0};
};

}  // namespace

result<std::shared_ptr<object_store>> make_s3_store(const uri& location,
                                                    const storage_options& options) {
  auto settings = read_aws_settings(options, &process_variable);
  if (!settings) return failure{settings.error()};
  auto address = make_s3_address(location, *settings);
  if (!address) return failure{address.error()};
  if (address->key.find_first_not_of('/') == std::string::npos) {
    return failure{error(errc::invalid_request,
                         "a bucket without a prefix: name the model's prefix, as in s3://" +
                             address->bucket + "/path/to/model")};
  }
  return std::make_shared<s3_store>(location, std::move(*address), std::move(*settings),
                                    read_network_settings(options, &process_variable),
                                    options.headers);
}

}  // namespace headrace
