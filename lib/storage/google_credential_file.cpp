#include "storage/google_credential_file.hpp"

#include "storage/json_answer.hpp"
#include "storage/text.hpp"

#include <boost/json/array.hpp>

#include <algorithm>
#include <utility>

namespace headrace {
namespace {

using boost::json::object;
using detail::object_of;
using detail::string_of;

constexpr std::size_t most_fields = 16;
constexpr std::size_t most_delegates = 16;

/// One object of a file, and what it is called in messages.
class reader {
 public:
  reader(const object& from, std::string where) : from_(from), where_(std::move(where)) {}

  [[nodiscard]] failure<error> refuse(const std::string& why,
                                      errc kind = errc::invalid_request) const {
    return failure{error(kind, where_ + " " + why)};
  }

  /// A member that has to be there, printable and on one line.
  [[nodiscard]] result<std::string> text(const char* name) const {
    std::string value = string_of(from_, name);
    if (value.empty()) return refuse("has no '" + std::string(name) + "'");
    if (!detail::all(value, [](char c) { return !detail::is_control(c); }))
      return refuse("has a control character in '" + std::string(name) + "'");
    return value;
  }

  /// The URL of a service that secrets are sent to.
  [[nodiscard]] result<service_place> place(const char* name, const char* otherwise = "") const {
    std::string url = string_of(from_, name);
    if (url.empty()) url = otherwise;
    if (url.empty()) return refuse("has no '" + std::string(name) + "'");
    auto parsed = parse_service_place(url, where_ + ": '" + name + "'");
    if (parsed && !keeps_secrets(parsed->origin))
      return refuse("has a '" + std::string(name) + "' without https: secrets would be sent there");
    return parsed;
  }

  [[nodiscard]] const object& members() const noexcept { return from_; }
  [[nodiscard]] const std::string& where() const noexcept { return where_; }

 private:
  const object& from_;
  const std::string where_;
};

result<google_service_account> read_service_account(const reader& file) {
  auto email = file.text("client_email");
  if (!email) return failure{email.error()};
  google_service_account account{.email = std::move(*email),
                                 .key_id = string_of(file.members(), "private_key_id"),
                                 .private_key = string_of(file.members(), "private_key")};
  if (account.private_key.empty()) return file.refuse("has no 'private_key'");
  const std::string universe = string_of(file.members(), "universe_domain");
  if (!universe.empty() && universe != "googleapis.com") {
    return file.refuse("is for another universe than googleapis.com, which is not supported",
                       errc::unsupported);
  }
  return account;
}

result<google_user> read_user(const reader& file) {
  google_user user;
  for (const auto& [name, into] :
       {std::pair{"client_id", &user.client_id}, std::pair{"client_secret", &user.client_secret},
        std::pair{"refresh_token", &user.refresh_token}}) {
    auto text = file.text(name);
    if (!text) return failure{text.error()};
    *into = std::move(*text);
  }
  auto place = file.place("token_uri", "https://oauth2.googleapis.com/token");
  if (!place) return failure{place.error()};
  user.token_service = std::move(*place);
  user.account = detail::printable(string_of(file.members(), "account"), 256);
  return user;
}

/// The fields that a subject token is asked for with.
result<http_fields> read_fields(const reader& source) {
  http_fields fields;
  const auto* const given = object_of(source.members(), "headers");
  if (given == nullptr) return fields;
  if (given->size() > most_fields) return source.refuse("has too many 'headers'");
  for (const auto& member : *given) {
    const std::string name(member.key().data(), member.key().size());
    std::string value = string_of(*given, name);
    const bool right = !name.empty() && detail::all(name, [](char c) {
      return detail::is_alphanumeric(c) || c == '-' || c == '_';
    }) && detail::all(value, [](char c) { return !detail::is_control(c); });
    if (!right) return source.refuse("has 'headers' that HTTP does not allow");
    fields.emplace_back(name, std::move(value));
  }
  return fields;
}

result<void> read_subject(const reader& file, google_external_account& account) {
  const auto* const given = object_of(file.members(), "credential_source");
  if (given == nullptr) return file.refuse("has no 'credential_source'");
  const reader source(*given, file.where() + ": 'credential_source'");
  for (const char* const kind : {"environment_id", "executable", "certificate"}) {
    if (given->contains(kind)) {
      return file.refuse("takes its subject token from '" + std::string(kind) +
                             "', which is not supported: 'file' and 'url' are",
                         errc::unsupported);
    }
  }
  account.subject_file = string_of(*given, "file");
  if (const std::string url = string_of(*given, "url"); account.subject_file.empty()) {
    if (url.empty()) return source.refuse("has neither 'file' nor 'url'");
    auto place = parse_service_place(url, source.where() + ": 'url'");
    if (!place) return failure{place.error()};
    account.subject_place = std::move(*place);
    auto fields = read_fields(source);
    if (!fields) return failure{fields.error()};
    account.subject_fields = std::move(*fields);
  }
  const auto* const format = object_of(*given, "format");
  if (format == nullptr) return {};
  const std::string type = string_of(*format, "type");
  if (type == "json") {
    account.subject_member = string_of(*format, "subject_token_field_name");
    if (account.subject_member.empty())
      return source.refuse("has a 'format' without 'subject_token_field_name'");
  } else if (!type.empty() && type != "text") {
    return source.refuse("has a 'format' that is neither text nor json");
  }
  return {};
}

result<google_external_account> read_external_account(const reader& file) {
  google_external_account account;
  for (const auto& [name, into] : {std::pair{"audience", &account.audience},
                                   std::pair{"subject_token_type", &account.subject_token_type}}) {
    auto text = file.text(name);
    if (!text) return failure{text.error()};
    *into = std::move(*text);
  }
  auto place = file.place("token_url");
  if (!place) return failure{place.error()};
  account.token_service = std::move(*place);
  account.client_id = string_of(file.members(), "client_id");
  account.client_secret = string_of(file.members(), "client_secret");
  account.workforce_project = string_of(file.members(), "workforce_pool_user_project");
  if (auto read = read_subject(file, account); !read) return failure{read.error()};
  return account;
}

/// `…/serviceAccounts/NAME@PROJECT.iam.gserviceaccount.com:generateAccessToken`
std::string email_of(std::string_view path) {
  const auto slash = path.rfind('/');
  if (slash == std::string_view::npos) return {};
  path.remove_prefix(slash + 1);
  return detail::printable(path.substr(0, path.find(':')), 256);
}

result<google_impersonation> read_impersonation(const reader& file) {
  auto place = file.place("service_account_impersonation_url");
  if (!place) return failure{place.error()};
  google_impersonation impersonation;
  impersonation.email = email_of(place->path);
  impersonation.place = std::move(*place);
  if (const auto* const more = object_of(file.members(), "service_account_impersonation")) {
    if (const auto seconds = detail::integer_of(*more, "token_lifetime_seconds")) {
      if (*seconds < 600 || *seconds > 43'200)
        return file.refuse("has a 'token_lifetime_seconds' that is not within 600 and 43200");
      impersonation.lifetime = std::chrono::seconds(*seconds);
    }
  }
  if (const auto* const given = file.members().if_contains("delegates")) {
    const auto* const delegates = given->if_array();
    if (delegates == nullptr || delegates->size() > most_delegates)
      return file.refuse("has 'delegates' that are no list of at most 16");
    for (const auto& one : *delegates) {
      if (!one.is_string()) return file.refuse("has 'delegates' that are no names");
      impersonation.delegates.emplace_back(one.get_string().data(), one.get_string().size());
    }
  }
  return impersonation;
}

result<google_credential_file> read_impersonated(const reader& file);

result<google_credential_file> read_file(const reader& file, bool nested) {
  google_credential_file read;
  const std::string type = string_of(file.members(), "type");
  if (type == "service_account") {
    auto account = read_service_account(file);
    if (!account) return failure{account.error()};
    read.holder = std::move(*account);
  } else if (type == "authorized_user") {
    auto user = read_user(file);
    if (!user) return failure{user.error()};
    read.holder = std::move(*user);
  } else if (type == "external_account" && !nested) {
    auto account = read_external_account(file);
    if (!account) return failure{account.error()};
    read.holder = std::move(*account);
    if (!string_of(file.members(), "service_account_impersonation_url").empty()) {
      auto impersonation = read_impersonation(file);
      if (!impersonation) return failure{impersonation.error()};
      read.impersonation = std::move(*impersonation);
    }
  } else if (type == "impersonated_service_account" && !nested) {
    auto impersonated = read_impersonated(file);
    if (!impersonated) return impersonated;
    read = std::move(*impersonated);
  } else if (type.empty()) {
    return file.refuse(
        "has no 'type': it is no credential file of Google's tools (was a client's secret "
        "downloaded instead of a service account's key?)");
  } else {
    return file.refuse("is of the type '" + detail::printable(type, 64) +
                           "', which is not supported: service_account, authorized_user, "
                           "external_account and impersonated_service_account are",
                       errc::unsupported);
  }
  for (const char* const name : {"quota_project_id", "project_id"}) {
    const std::string project = string_of(file.members(), name);
    if (read.project.empty() && project.size() <= 128 && detail::all(project, detail::is_visible)) {
      read.project = project;
    }
  }
  return read;
}

result<google_credential_file> read_impersonated(const reader& file) {
  const auto* const inner = object_of(file.members(), "source_credentials");
  if (inner == nullptr) return file.refuse("has no 'source_credentials'");
  auto read = read_file(reader(*inner, file.where() + ": 'source_credentials'"), true);
  if (!read) return read;
  auto impersonation = read_impersonation(file);
  if (!impersonation) return failure{impersonation.error()};
  read->impersonation = std::move(*impersonation);
  return read;
}

}  // namespace

result<google_credential_file> parse_google_credential_file(std::string_view text,
                                                            const std::string& where) {
  const auto parsed = detail::parse_json_object(text);
  if (!parsed) {
    return failure{error(errc::invalid_request, where + " is no JSON object: expected a credential "
                                                        "file of Google's tools")};
  }
  return read_file(reader(*parsed, where), false);
}

}  // namespace headrace
