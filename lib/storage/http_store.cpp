#include "storage/http_object_store.hpp"
#include "storage/network_environment.hpp"
#include "storage/percent.hpp"

#include <headrace/storage/retry_policy.hpp>

#include <openssl/evp.h>

#include <utility>

namespace headrace {
namespace {

/// A directory, or a file, of a plain web server. Nothing lists it: an index has to say what there
/// is.
class http_store final : public http_object_store {
 public:
  http_store(const uri& location, http_origin origin,
             std::shared_ptr<const network_settings> network, http_fields fields)
      : location_(location.display()),
        origin_(std::move(origin)),
        network_(std::move(network)),
        query_(location.query),
        fields_(std::move(fields)) {
    path_ = location.path.empty() ? "/" : location.path;
    if (path_.ends_with(".safetensors")) {
      const auto slash = path_.rfind('/');
      single_ = path_.substr(slash + 1);
      path_.resize(slash);
      location_base_ = location_.substr(0, location_.size() - single_.size());
    } else {
      while (!path_.empty() && path_.back() == '/') path_.pop_back();
      location_base_ = location_;
      while (location_base_.ends_with('/')) location_base_.pop_back();
      location_base_ += '/';
    }
  }

  [[nodiscard]] bool lists() const noexcept override { return false; }
  [[nodiscard]] const std::string& single() const noexcept override { return single_; }
  [[nodiscard]] const std::string& location() const noexcept override { return location_; }
  [[nodiscard]] std::string uri_of(std::string_view name) const override {
    return location_base_ + std::string(name);
  }

  task<result<std::vector<object_entry>>> list(storage_loop&, const transfer&) override {
    co_return failure{
        error(errc::unsupported, "a web server does not list its files", {.uri = location_})};
  }

  task<result<std::vector<object_entry>>> list_all(storage_loop& loop,
                                                   const transfer& terms) override {
    return list(loop, terms);
  }

  task<result<addressed_request>> get(storage_loop&, object_request wanted) override {
    const std::string& name = wanted.name;
    addressed_request made{.route = {origin_, network_}, .request = {}};
    // The name of a single object is a part of the user's URL and stays as it was written; names
    // from an index are encoded.
    made.request.target = path_ + "/" + (name == single_ ? name : percent_encode(name));
    if (!query_.empty()) made.request.target += "?" + query_;
    made.request.host = origin_.host_field();
    made.request.fields = range_fields(wanted);
    made.request.fields.insert(made.request.fields.end(), fields_.begin(), fields_.end());
    co_return made;
  }

  [[nodiscard]] store_refusal refused(const http_response_head& head, std::string_view,
                                      bool pinned) override {
    store_refusal refusal;
    refusal.what = classify_answer(head.status(), "");
    refusal.kind = kind_of_answer(head.status(), "", pinned);
    for (const char* const name : {"x-request-id", "x-amz-request-id", "x-amz-cf-id"}) {
      if (const auto id = head.field(name); id && refusal.request_id.empty())
        refusal.request_id = *id;
    }
    return refusal;
  }

  [[nodiscard]] bool owns_redirect(const http_response_head&) const noexcept override {
    return false;
  }

  [[nodiscard]] std::shared_ptr<const network_settings> network() const noexcept override {
    return network_;
  }

  [[nodiscard]] http_fields fields_for(const http_origin& origin) const override {
    return origin == origin_ ? fields_ : http_fields();
  }

 private:
  std::string location_;
  std::string location_base_;
  const http_origin origin_;
  const std::shared_ptr<const network_settings> network_;
  std::string path_;         ///< Percent-encoded, without a `/` at its end.
  const std::string query_;  ///< May hold a signature: in no message.
  const http_fields fields_;
  std::string single_;
};

/// The `Authorization` of `user:password` (RFC 7617), percent-encoded as in a URL.
result<std::string> basic_authorization(std::string_view user_info) {
  const auto decoded = percent_decode(user_info);
  if (!decoded)
    return failure{error(errc::invalid_request,
                         "the user and password in the URL are not percent-encoded right")};
  std::string encoded(4 * ((decoded->size() + 2) / 3) + 1, '\0');
  const int size = EVP_EncodeBlock(reinterpret_cast<unsigned char*>(encoded.data()),
                                   reinterpret_cast<const unsigned char*>(decoded->data()),
                                   static_cast<int>(decoded->size()));
  encoded.resize(static_cast<std::size_t>(size));
  return "Basic " + encoded;
}

}  // namespace

result<std::shared_ptr<object_store>> make_http_store(const uri& location,
                                                      const storage_options& options) {
  auto origin = http_origin::of(location);
  if (!origin) return failure{origin.error()};
  http_fields fields = options.headers;
  if (!location.user_info.empty()) {
    auto authorization = basic_authorization(location.user_info);
    if (!authorization) return failure{authorization.error()};
    fields.emplace_back("Authorization", std::move(*authorization));
  }
  return std::make_shared<http_store>(location, std::move(*origin),
                                      read_network_settings(options, &process_variable),
                                      std::move(fields));
}

}  // namespace headrace
