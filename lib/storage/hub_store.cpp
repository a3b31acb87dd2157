#include "storage/hub_store.hpp"

#include "storage/content_range.hpp"
#include "storage/hub_address.hpp"
#include "storage/hub_answers.hpp"
#include "storage/hub_token.hpp"
#include "storage/json_answer.hpp"
#include "storage/listing_request.hpp"
#include "storage/network_environment.hpp"
#include "storage/percent.hpp"
#include "storage/redirect.hpp"
#include "storage/text.hpp"

#include <algorithm>
#include <mutex>
#include <utility>

namespace headrace {
namespace {

/// Pages of a listing, of a thousand files each, before it is taken for one without an end.
constexpr std::size_t page_limit = 1'000;

/// A repository of the Hugging Face Hub, at one commit. Small files come from the Hub itself, large
/// ones from wherever it redirects to: see `version_of_redirect`.
class hub_store final : public http_object_store {
 public:
  hub_store(const uri& location, hub_address address, hub_settings settings,
            std::shared_ptr<const network_settings> network, http_fields fields)
      : location_(location.display()),
        revision_(std::move(address.revision)),
        folder_(address.folder.empty() ? "" : address.folder + "/"),
        single_(std::move(address.single)),
        location_base_(
            "hf://" + address.repository +
            (revision_ == "main" ? "" : "@" + percent_encode(revision_, slash::encoded)) + "/" +
            folder_),
        endpoint_(settings.endpoint),
        network_(std::move(network)),
        fields_(std::move(fields)),
        has_own_authorization_(std::ranges::any_of(
            fields_,
            [](const auto& field) { return detail::same_name(field.first, "authorization"); })),
        tokens_(make_hub_token_source(std::move(settings))),
        commits_(std::make_shared<commit_source>(*this)),
        repository_(std::move(address.repository)) {}

  [[nodiscard]] bool lists() const noexcept override { return true; }
  [[nodiscard]] const std::string& single() const noexcept override { return single_; }
  [[nodiscard]] const std::string& location() const noexcept override { return location_; }

  [[nodiscard]] std::string uri_of(std::string_view name) const override {
    return location_base_ + std::string(name);
  }

  task<result<std::vector<object_entry>>> list(storage_loop& loop, const transfer& terms) override {
    return list_tree(loop, terms, listing_depth::direct);
  }

  task<result<std::vector<object_entry>>> list_all(storage_loop& loop,
                                                   const transfer& terms) override {
    return list_tree(loop, terms, listing_depth::everything);
  }

  task<result<std::vector<object_entry>>> list_tree(storage_loop& loop, const transfer& terms,
                                                    listing_depth depth) {
    const bool direct = depth == listing_depth::direct;
    std::vector<object_entry> found;
    std::string next;
    for (std::size_t page = 0; page < page_limit; ++page) {
      auto answer =
          co_await fetch_answer(loop, terms, *this, location_,
                                {.make = direct ? &make_list_request<listing_depth::direct>
                                                : &make_list_request<listing_depth::everything>,
                                 .argument = next,
                                 .limit = max_hub_answer});
      if (!answer) co_return failure{answer.error()};
      auto files = parse_hub_tree(answer->text);
      if (!files) co_return failure{files.error().with({.uri = location_})};
      for (auto& file : *files) {
        if (!file.path.starts_with(folder_)) continue;
        std::string name = file.path.substr(folder_.size());
        if (!name.empty() && (!direct || name.find('/') == std::string::npos))
          found.push_back({std::move(name), file.size});
      }
      const auto field = answer->head.field("Link");
      const auto link = field ? next_link(*field) : std::nullopt;
      if (!link) {
        std::ranges::sort(found, {}, &object_entry::name);
        co_return found;
      }
      auto target = api_target(*link);
      if (!target) {
        co_return failure{error(errc::protocol_error,
                                "the Hub's listing goes on at a place that is none of its own",
                                {.uri = location_})};
      }
      next = std::move(*target);
    }
    co_return failure{
        error(errc::protocol_error, "a listing that does not end", {.uri = location_})};
  }

  task<result<addressed_request>> get(storage_loop& loop, object_request wanted) override {
    auto commit = co_await commits_.get(loop);
    if (!commit) co_return failure{commit.error()};
    auto made = co_await request(loop, endpoint_.path + "/" + repository() + "/resolve/" + *commit +
                                           "/" + percent_encode(folder_ + wanted.name));
    // The commit is the condition: a tag of the Hub's means nothing to those it redirects to.
    if (made) made->request.fields.emplace_back("Range", wanted.range);
    co_return made;
  }

  /// The Hub names the size and the tag of a large file next to where it is. Each host that serves
  /// it has tags of its own.
  [[nodiscard]] std::optional<object_version> version_of_redirect(
      const http_response_head& head) const override {
    const auto size = head.field("X-Linked-Size");
    const auto bytes = size ? parse_decimal(*size) : std::nullopt;
    if (!bytes) return std::nullopt;
    object_version told;
    told.size = *bytes;
    if (const auto tag = head.field("X-Linked-Etag")) told.etag = parse_entity_tag(*tag);
    return told;
  }

  [[nodiscard]] store_refusal refused(const http_response_head& head, std::string_view body,
                                      bool pinned) override {
    store_refusal refusal;
    refusal.what = classify_answer(head.status(), "");
    refusal.kind = kind_of_answer(head.status(), "", pinned);
    for (const char* const name : {"x-request-id", "x-amz-request-id", "x-amz-cf-id"}) {
      if (const auto id = head.field(name); id && refusal.request_id.empty())
        refusal.request_id = detail::printable(*id, 128);
    }
    if (head.status() < 400) {
      refusal.ask_again = learn_name(head);
      return refusal;
    }
    if (const auto code = head.field("X-Error-Code")) refusal.code = detail::printable(*code, 64);
    const std::string said = said_by(head, body);
    refusal.message = said;
    if (refusal.kind == errc::object_changed) return refusal;
    explain(refusal, head.status(), said);
    return refusal;
  }

  [[nodiscard]] bool owns_redirect(const http_response_head&) const noexcept override {
    return false;
  }

  [[nodiscard]] std::shared_ptr<const network_settings> network() const noexcept override {
    return network_;
  }

  [[nodiscard]] http_fields fields_for(const http_origin& origin) const override {
    if (origin != endpoint_.origin) return {};
    http_fields fields = fields_;
    const std::lock_guard lock(mutex_);
    if (!token_.bearer.empty() && !has_own_authorization_)
      fields.emplace_back("Authorization", "Bearer " + token_.bearer);
    return fields;
  }

  task<result<credential_report>> credentials(storage_loop& loop) override {
    auto held = co_await token(loop);
    if (!held) co_return failure{held.error()};
    co_return credential_report{.source = held->source,
                                .identity = {},
                                .expires = std::nullopt,
                                .details = {{"endpoint", endpoint_.origin.to_string()}}};
  }

 private:
  /// The commit that the revision stands for, asked for once.
  class commit_source final : public expiring_source<std::string> {
   public:
    /// `store` owns it.
    explicit commit_source(hub_store& store) : store_(store) {}

    task<result<expiring<std::string>>> fetch(storage_loop& loop) override {
      if (is_commit(store_.revision_))
        co_return expiring<std::string>{store_.revision_, std::nullopt};
      const transfer terms;
      auto body = co_await fetch_text(
          loop, terms, store_, store_.location_,
          {.make = &make_revision_request, .argument = {}, .limit = max_hub_answer});
      if (!body) co_return failure{body.error()};
      auto commit = parse_hub_commit(*body);
      if (!commit) co_return failure{commit.error().with({.uri = store_.location_})};
      co_return expiring<std::string>{std::move(*commit), std::nullopt};
    }

   private:
    hub_store& store_;
  };

  static task<result<addressed_request>> make_revision_request(http_object_store& store,
                                                               storage_loop& loop, std::string) {
    auto& self = static_cast<hub_store&>(store);
    auto made = co_await self.request(loop, self.endpoint_.path + "/api/models/" +
                                                self.repository() + "/revision/" +
                                                percent_encode(self.revision_, slash::encoded));
    co_return made;
  }

  /// `page`: what the page before it named; empty for the first one.
  template <listing_depth depth>
  static task<result<addressed_request>> make_list_request(http_object_store& store,
                                                           storage_loop& loop, std::string page) {
    auto& self = static_cast<hub_store&>(store);
    auto commit = co_await self.commits_.get(loop);
    if (!commit) co_return failure{commit.error()};
    if (page.empty()) {
      std::string_view folder = self.folder_;
      if (!folder.empty()) folder.remove_suffix(1);
      page = self.endpoint_.path + "/api/models/" + self.repository() + "/tree/" + *commit +
             (folder.empty() ? "" : "/" + percent_encode(folder)) +
             (depth == listing_depth::direct ? "?recursive=false" : "?recursive=true");
    }
    auto made = co_await self.request(loop, std::move(page));
    co_return made;
  }

  task<result<addressed_request>> request(storage_loop& loop, std::string target) {
    auto held = co_await token(loop);
    if (!held) co_return failure{held.error()};
    addressed_request made{.route = {endpoint_.origin, network_}, .request = {}};
    made.request.target = std::move(target);
    made.request.host = endpoint_.origin.host_field();
    made.request.fields = fields_for(endpoint_.origin);
    co_return made;
  }

  task<result<hub_token>> token(storage_loop& loop) {
    auto held = co_await tokens_.get(loop);
    if (!held) co_return failure{held.error().with({.uri = location_})};
    if (!held->bearer.empty()) {
      if (auto kept = check_keeps_secrets(endpoint_.origin); !kept)
        co_return failure{kept.error().with({.uri = location_})};
    }
    const std::lock_guard lock(mutex_);
    token_ = *held;
    co_return held;
  }

  /// A copy: a new name may be learned meanwhile.
  [[nodiscard]] std::string repository() const {
    const std::lock_guard lock(mutex_);
    return repository_;
  }

  /// Where a link of the API leads, as a target at the endpoint whatever host it names: mirrors
  /// hand out the Hub's own links. Nothing for other places.
  [[nodiscard]] std::optional<std::string> api_target(std::string_view link) const {
    auto resolved = resolve_redirect(endpoint_.origin, "/", link);
    if (!resolved) return std::nullopt;
    std::string target = std::move(resolved->target);
    if (target.starts_with(endpoint_.path)) target.erase(0, endpoint_.path.size());
    if (!target.starts_with("/api/models/")) return std::nullopt;
    return endpoint_.path + target;
  }

  /// A repository that has been renamed redirects to its new name. Whether that is news.
  bool learn_name(const http_response_head& head) {
    const auto location = head.field("Location");
    auto target = location ? api_target(*location) : std::nullopt;
    if (!target) return false;
    std::string_view path = std::string_view(*target).substr(0, target->find('?'));
    path.remove_prefix(endpoint_.path.size() + std::string_view("/api/models/").size());
    // `org/name/revision/…`, or `name/revision/…` for old repositories.
    std::size_t end = path.find('/');
    if (end != std::string_view::npos) {
      const auto second = path.find('/', end + 1);
      const auto rest = second == std::string_view::npos ? "" : path.substr(second);
      if (rest.empty() || rest.starts_with("/revision/") || rest.starts_with("/tree/"))
        end = second;
    }
    const auto name = path.substr(0, end);
    if (!is_hub_repository(name)) return false;
    const std::lock_guard lock(mutex_);
    if (repository_ == name) return false;
    repository_ = name;
    return true;
  }

  /// In the Hub's own words.
  static std::string said_by(const http_response_head& head, std::string_view body) {
    if (const auto message = head.field("X-Error-Message"); message && !message->empty())
      return detail::printable(*message, 512);
    const auto told = detail::parse_json_object(body);
    return told ? detail::printable(detail::string_of(*told, "error"), 512) : std::string();
  }

  /// What to do about a refusal.
  void explain(store_refusal& refusal, int status, const std::string& said) {
    hub_token token;
    std::string name;
    {
      const std::lock_guard lock(mutex_);
      token = token_;
      name = repository_;
    }
    const bool anonymous = token.bearer.empty();
    if (refusal.code == "RepoNotFound") {
      refusal.kind = errc::not_found;
      refusal.message =
          "the repository " + name + " is not there, or is private" +
          (anonymous ? ": check its name, or set HF_TOKEN to a token that may read it"
                     : " and the token from " + token.source + " may not read it: check both");
    } else if (refusal.code == "RevisionNotFound") {
      refusal.kind = errc::not_found;
      refusal.message = "the repository " + name + " has no revision '" + revision_ + "'";
    } else if (refusal.code == "EntryNotFound") {
      refusal.message = "not in the repository " + name + " at the revision '" + revision_ + "'";
    } else if (refusal.code == "GatedRepo") {
      refusal.kind = errc::access_denied;
      const std::string place = endpoint_.origin.scheme + "://" + endpoint_.origin.host_field() +
                                endpoint_.path + "/" + name;
      refusal.message = "the repository " + name + " is gated: accept the licence at " + place +
                        (anonymous ? ", then set HF_TOKEN to a token of that account"
                                   : " with the account whose token " + token.source + " holds");
    } else if (status == 401 || (status == 403 && !said.empty())) {
      refusal.message =
          (said.empty() ? "access denied" : said) +
          (anonymous ? " (no token was sent: set HF_TOKEN)"
                     : " (the token is from " + token.source + ": is it still valid?)");
    }
  }

  const std::string location_;
  const std::string revision_;
  const std::string folder_;  ///< Empty, or with a `/` at its end.
  const std::string single_;
  const std::string location_base_;
  const service_place endpoint_;
  const std::shared_ptr<const network_settings> network_;
  const http_fields fields_;
  const bool has_own_authorization_;
  refreshed<hub_token> tokens_;
  refreshed<std::string> commits_;

  mutable std::mutex mutex_;
  std::string repository_;  ///< Its new name, where it has been renamed.
  hub_token token_;         ///< What the last request carried.
};

}  // namespace

result<std::shared_ptr<object_store>> make_hub_store(const uri& location,
                                                     const storage_options& options,
                                                     const variable_lookup& variable) {
  auto address = parse_hub_address(location);
  if (!address) return failure{address.error()};
  auto settings = read_hub_settings(options, variable);
  if (!settings) return failure{settings.error()};
  return std::make_shared<hub_store>(location, std::move(*address), std::move(*settings),
                                     read_network_settings(options, variable), options.headers);
}

result<std::shared_ptr<object_store>> make_hub_store(const uri& location,
                                                     const storage_options& options) {
  return make_hub_store(location, options, &process_variable);
}

}  // namespace headrace
