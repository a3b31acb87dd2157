#pragma once

#include "storage/azure_store.hpp"
#include "storage/percent.hpp"
#include "storage/shared_key.hpp"
#include "storage_client.hpp"

#include <doctest/doctest.h>
#include <support/scripted_server.hpp>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace headrace::test {

/// The variables that a store sees.
using azure_variables = std::map<std::string, std::string>;

/// base64 of a key that must appear nowhere.
inline const std::string account_key = "aHVudGVyMg==";  // hunter2

[[nodiscard]] inline result<std::shared_ptr<object_store>> azure_store_at(
    std::string_view location, const azure_variables& set, const storage_options& options = {}) {
  const auto parsed = uri::parse(location);
  REQUIRE(parsed);
  return make_azure_store_from(*parsed, options,
                               [&set](const char* name) -> std::optional<std::string> {
                                 const auto found = set.find(name);
                                 if (found == set.end()) return std::nullopt;
                                 return found->second;
                               });
}

/// The account `mine` on a server of ours.
[[nodiscard]] inline storage_options mine_at(const scripted_server& server) {
  storage_options options;
  options.endpoint = server.url("/mine");
  return options;
}

/// `az://models/llama` there.
[[nodiscard]] inline std::shared_ptr<object_store> llama_at(const scripted_server& server,
                                                            const azure_variables& set) {
  auto store = azure_store_at("az://models/llama", set, mine_at(server));
  REQUIRE_MESSAGE(store, (store ? "" : store.error().what()));
  return *store;
}

/// Whether a request, as it arrived, carries the signature that it should have.
[[nodiscard]] inline bool is_signed(const seen_request& request, const std::string& account) {
  std::vector<std::pair<std::string, std::string>> query;
  const auto mark = request.target.find('?');
  std::string_view rest =
      mark == std::string::npos ? "" : std::string_view(request.target).substr(mark + 1);
  while (!rest.empty()) {
    const auto part = rest.substr(0, rest.find('&'));
    rest.remove_prefix(std::min(rest.size(), part.size() + 1));
    const auto equals = part.find('=');
    query.emplace_back(percent_decode(part.substr(0, equals)).value(),
                       percent_decode(part.substr(equals + 1)).value());
  }
  const shared_key_signer signer(account, decode_account_key(account_key).value());
  const std::string path = request.path();
  return request.field("Authorization") ==
         signer.authorize({.path = path, .query = query, .fields = request.fields});
}

/// An error of Azure's, as its documents look.
[[nodiscard]] inline std::string azure_refusal(int status, const std::string& code,
                                               http_fields fields = {}) {
  fields.emplace_back("x-ms-error-code", code);
  fields.emplace_back("x-ms-request-id", "7b1b-42");
  return answer(status, fields,
                "\xEF\xBB\xBF<?xml version=\"1.0\" encoding=\"utf-8\"?><Error><Code>" + code +
                    "</Code><Message>said by the store\nRequestId:7b1b-42\nTime:now</Message>"
                    "<AuthenticationErrorDetail>hunter2</AuthenticationErrorDetail></Error>");
}

}  // namespace headrace::test
