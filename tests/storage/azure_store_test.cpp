#include "azure_client.hpp"

#include <doctest/doctest.h>
#include <support/checkpoint.hpp>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

namespace headrace {
namespace {

using test::account_key;
using test::answer;
using test::answer_with;
using test::azure_refusal;
using test::azure_store_at;
using test::azure_variables;
using test::is_signed;
using test::llama_at;
using test::mine_at;
using test::says;
using test::scripted_server;
using test::seen_request;
using test::steps;
using test::storage_client;
namespace action = test::action;

const std::string object = test::content_of("object", 300'000);
const azure_variables with_key = {{"AZURE_STORAGE_KEY", account_key}};
const azure_variables with_sas = {
    {"AZURE_STORAGE_SAS_TOKEN", "?sv=2021-12-02&sp=r&se=2024-01-31T00:00:00Z&sig=hunter2%2B"}};
constexpr const char* name = "x.safetensors";

scripted_server::script serve() {
  return [](const seen_request& request) -> steps {
    return {action::send{answer_with(object, request, "\"0x8DC1\"")}};
  };
}

scripted_server::script refuse(std::string whole) {
  return [whole = std::move(whole)](const seen_request&) -> steps { return {action::send{whole}}; };
}

std::string page(const std::string& blobs, const std::string& marker = {}) {
  return answer(
      200, {{"Content-Type", "application/xml"}},
      "\xEF\xBB\xBF<?xml version=\"1.0\" encoding=\"utf-8\"?><EnumerationResults><Blobs>" + blobs +
          "</Blobs><NextMarker>" + marker + "</NextMarker></EnumerationResults>");
}

std::string blob(const std::string& shown, std::size_t size = 1, const std::string& more = {}) {
  return "<Blob><Name>" + shown + "</Name><Properties><Content-Length>" + std::to_string(size) +
         "</Content-Length>" + more + "</Properties></Blob>";
}

/// The parameter of a request's query, decoded.
std::string parameter(const seen_request& request, const std::string& wanted) {
  const auto mark = request.target.find('?');
  std::string rest = "&" + request.target.substr(mark + 1) + "&";
  const auto at = rest.find("&" + wanted + "=");
  if (at == std::string::npos) return {};
  const auto begin = at + wanted.size() + 2;
  return percent_decode(rest.substr(begin, rest.find('&', begin) - begin)).value();
}

TEST_SUITE("fault") {
  TEST_CASE("requests are signed as they are sent, and the pin is sent along") {
    scripted_server server(serve());
    storage_client here;
    auto options = mine_at(server);
    options.headers = {{"x-ms-tag", " of the user's "}, {"X-Other", "too"}};
    auto store = azure_store_at("az://models/a b+%/x.safetensors", with_key, options);
    REQUIRE(store);
    const auto source = (*store)->source(name);
    REQUIRE(here.open(*source));
    const auto read = here.read(*source, 100'000, 1'000);
    REQUIRE(read);
    CHECK(*read == object.substr(100'000, 1'000));
    CHECK(source->uri() == "az://models/a b+%/x.safetensors");
    const auto requests = server.requests();
    REQUIRE(requests.size() == 2);
    for (const auto& request : requests) {
      CHECK(request.target == "/mine/models/a%20b%2B%25/x.safetensors");
      CHECK(is_signed(request, "mine"));
      CHECK(request.field("x-ms-version") == "2021-02-12");
      CHECK(request.field("x-ms-date"));
      CHECK(request.field("X-Other") == "too");
    }
    CHECK_FALSE(requests[0].field("If-Match"));
    CHECK(requests[1].field("If-Match") == "\"0x8DC1\"");
    CHECK(requests[1].field("Range") == "bytes=100000-100999");
  }

  TEST_CASE("a signature of the user's goes along with reads and lists, and nowhere else") {
    scripted_server server([](const seen_request& request) -> steps {
      if (parameter(request, "comp") == "list") return {action::send{page(blob("llama/a"))}};
      return {action::send{answer_with(object, request)}};
    });
    storage_client here;
    const auto store = llama_at(server, with_sas);
    REQUIRE(here.open(*store->source(name)));
    REQUIRE(here.run(store->list(here.services, here.terms)));
    for (const auto& request : server.requests()) {
      CHECK(request.target.ends_with(
          "sv=2021-12-02&sp=r&se=2024-01-31T00%3A00%3A00Z&sig=hunter2%2B"));
      CHECK_FALSE(request.field("Authorization"));
    }
    CHECK(server.requests().at(1).path() == "/mine/models");
    const auto report = here.run(store->credentials(here.services));
    REQUIRE(report);
    CHECK(report->source == "the variable AZURE_STORAGE_SAS_TOKEN");
    REQUIRE(report->expires);
    CHECK(*report->expires == std::chrono::sys_days(std::chrono::year(2024) / 1 / 31));
  }

  TEST_CASE("a connection string leads to its endpoint") {
    scripted_server server(serve());
    storage_client here;
    const azure_variables set = {
        {"AZURE_STORAGE_CONNECTION_STRING", "AccountName=mine;AccountKey=" + account_key +
                                                ";BlobEndpoint=" + server.url("/mine") + ";"}};
    auto store = azure_store_at("abfss://models@mine.dfs.core.windows.net/llama", set);
    REQUIRE(store);
    const auto source = (*store)->source(name);
    REQUIRE(here.open(*source));
    CHECK(source->uri() == "abfss://models@mine.dfs.core.windows.net/llama/x.safetensors");
    CHECK(server.requests().at(0).target == "/mine/models/llama/x.safetensors");
    CHECK(is_signed(server.requests().at(0), "mine"));
    const auto report = here.run((*store)->credentials(here.services));
    REQUIRE(report);
    CHECK(report->source == "the account key in AZURE_STORAGE_CONNECTION_STRING");
    CHECK(report->identity == "mine");
  }

  TEST_CASE("a refusal says the store's own code, words and request id, and no secret") {
    scripted_server server(refuse(azure_refusal(403, "AuthenticationFailed")));
    for (const auto& set : {with_key, with_sas}) {
      storage_client here;
      const auto opened = here.open(*llama_at(server, set)->source(name));
      REQUIRE_FALSE(opened);
      const error& failed = opened.error();
      CHECK(failed.kind() == errc::access_denied);
      CHECK(failed.context().server_code == "AuthenticationFailed");
      CHECK(failed.context().request_id == "7b1b-42");
      CHECK(says(failed, "said by the store"));
      CHECK(says(failed, set.begin()->first));
      CHECK(says(failed, "az://models/llama/x.safetensors"));
      CHECK_FALSE(says(failed, "RequestId:"));
      CHECK_FALSE(says(failed, "hunter2"));
      CHECK_FALSE(says(failed, account_key));
      CHECK_FALSE(says(failed, "SharedKey"));
    }
    CHECK(server.requests().size() == 2);
  }

  TEST_CASE("a signature that has run out, or permits too little, is said to") {
    scripted_server late(refuse(azure_refusal(403, "AuthenticationFailed")));
    storage_client here;
    const auto expired = here.open(*llama_at(late, with_sas)->source(name));
    REQUIRE_FALSE(expired);
    CHECK(says(expired.error(), "it ran out Wed, 31 Jan 2024 00:00:00 GMT"));

    scripted_server server(refuse(azure_refusal(403, "AuthorizationPermissionMismatch")));
    const auto early = here.open(
        *llama_at(server, {{"AZURE_STORAGE_SAS_TOKEN", "st=2140-01-01&se=2141-01-01&sig=hunter2"}})
             ->source(name));
    REQUIRE_FALSE(early);
    CHECK(says(early.error(), "it holds only from"));
    const auto narrow =
        here.open(*llama_at(server, {{"AZURE_STORAGE_SAS_TOKEN", "sp=l&se=2140-01-01&sig=hunter2"}})
                       ->source(name));
    REQUIRE_FALSE(narrow);
    CHECK(says(narrow.error(), "sp=rl (the variable AZURE_STORAGE_SAS_TOKEN)"));
  }

  TEST_CASE("what the store's codes mean") {
    struct meaning {
      int status;
      const char* code;
      errc kind;
      const char* hint;
    };
    constexpr std::array<meaning, 8> meanings{{
        {404, "BlobNotFound", errc::not_found, "said by the store"},
        {404, "ContainerNotFound", errc::not_found, "said by the store"},
        {403, "AuthorizationFailure", errc::access_denied, "network rules"},
        {403, "KeyBasedAuthenticationNotPermitted", errc::access_denied, "takes no keys"},
        {400, "InvalidAuthenticationInfo", errc::access_denied, "AZURE_STORAGE_KEY"},
        {409, "PublicAccessNotPermitted", errc::access_denied, "said by the store"},
        {409, "BlobArchived", errc::invalid_request, "archive tier"},
        {400, "InvalidUri", errc::invalid_request, "said by the store"},
    }};
    for (const auto& meant : meanings) {
      CAPTURE(meant.code);
      scripted_server server(refuse(azure_refusal(meant.status, meant.code)));
      storage_client here;
      const auto opened = here.open(*llama_at(server, with_key)->source(name));
      REQUIRE_FALSE(opened);
      CHECK(opened.error().kind() == meant.kind);
      CHECK(says(opened.error(), meant.code));
      CHECK(says(opened.error(), meant.hint));
      CHECK(server.requests().size() == 1);
    }
  }

  TEST_CASE("ServerBusy and OperationTimedOut pass") {
    scripted_server server([](const seen_request& request) -> steps {
      if (request.number == 0) return {action::send{azure_refusal(503, "ServerBusy")}};
      if (request.number == 1) return {action::send{azure_refusal(500, "OperationTimedOut")}};
      return {action::send{answer_with(object, request)}};
    });
    storage_client here;
    REQUIRE(here.open(*llama_at(server, with_key)->source(name)));
    CHECK(here.retries() == 2);
    for (const auto& request : server.requests()) CHECK(is_signed(request, "mine"));
  }

  TEST_CASE("a blob that is overwritten has changed, whoever notices it") {
    const std::array<std::string, 3> answers{
        azure_refusal(412, "ConditionNotMet"), azure_refusal(404, "BlobNotFound"),
        answer(206, {{"ETag", "\"0x8DC2\""}, {"Content-Range", "bytes 100000-100999/300000"}},
               object.substr(100'000, 1'000))};
    for (const auto& later : answers) {
      CAPTURE(later.substr(0, later.find("\r\n")));
      scripted_server server([&later](const seen_request& request) -> steps {
        if (request.number == 0) return {action::send{answer_with(object, request, "\"0x8DC1\"")}};
        return {action::send{later}};
      });
      storage_client here;
      const auto source = llama_at(server, with_key)->source(name);
      REQUIRE(here.open(*source));
      const auto read = here.read(*source, 100'000, 1'000);
      REQUIRE_FALSE(read);
      CHECK(read.error().kind() == errc::object_changed);
      CHECK(server.requests().size() == 2);
    }
  }

  TEST_CASE("an empty blob is empty") {
    scripted_server server(
        refuse(azure_refusal(416, "InvalidRange", {{"Content-Range", "bytes */0"}})));
    storage_client here;
    const auto source = llama_at(server, with_key)->source(name);
    const auto opened = here.open(*source);
    REQUIRE(opened);
    CHECK(opened->empty());
    CHECK(source->size() == 0);
  }

  TEST_CASE("a clock that is wrong is corrected once, by the store's own") {
    const std::string late =
        azure_refusal(403, "AuthenticationFailed", {{"Date", "Sun, 15 Jan 2040 12:00:00 GMT"}});
    scripted_server server([&late](const seen_request& request) -> steps {
      const auto date = request.field("x-ms-date").value_or("");
      if (date.find(" Jan 2040 ") == std::string::npos) return {action::send{late}};
      return {action::send{answer_with(object, request)}};
    });
    storage_client here;
    here.terms.limits.retries = 0;
    const auto source = llama_at(server, with_key)->source(name);
    CHECK(here.open(*source));
    CHECK(here.read(*source, 70'000, 1'000));
    CHECK(server.requests().size() == 3);
    CHECK(is_signed(server.requests().at(1), "mine"));

    scripted_server never(refuse(late));
    const auto opened = here.open(*llama_at(never, with_key)->source(name));
    REQUIRE_FALSE(opened);
    CHECK(opened.error().kind() == errc::access_denied);
    CHECK(says(opened.error(), "minutes behind the store's: set it right"));
    CHECK(never.requests().size() == 2);
  }

  TEST_CASE("a date beyond all clocks is not believed") {
    scripted_server server(refuse(
        azure_refusal(403, "AuthenticationFailed", {{"Date", "Fri, 31 Dec 9999 23:59:59 GMT"}})));
    storage_client here;
    const auto opened = here.open(*llama_at(server, with_key)->source(name));
    REQUIRE_FALSE(opened);
    CHECK(opened.error().kind() == errc::access_denied);
    CHECK(server.requests().size() == 1);
  }

  TEST_CASE("credentials do not follow a redirect to another host") {
    scripted_server elsewhere(serve());
    scripted_server server([&](const seen_request&) -> steps {
      return {action::send{answer(302, {{"Location", elsewhere.url("/x")}})}};
    });
    storage_client here;
    auto options = mine_at(server);
    options.headers = {{"X-Token", "hunter2"}};
    for (const auto& set : {with_key, with_sas}) {
      auto store = azure_store_at("az://models/llama", set, options);
      REQUIRE(store);
      REQUIRE(here.open(*(*store)->source(name)));
    }
    REQUIRE(elsewhere.requests().size() == 2);
    for (const auto& request : elsewhere.requests()) {
      CHECK(request.target == "/x");
      for (const char* const field : {"Authorization", "X-Token", "x-ms-date"})
        CHECK_FALSE(request.field(field));
    }
  }

  TEST_CASE("a listing of 2,500 blobs comes in pages, each of them retried") {
    scripted_server server([](const seen_request& request) -> steps {
      if (request.number % 2 == 0) return {action::send{azure_refusal(503, "ServerBusy")}};
      const std::string marker = parameter(request, "marker");
      const std::size_t first = marker.empty() ? 0 : std::stoul(marker.substr(4));
      const std::size_t last = std::min<std::size_t>(first + 1000, 2500);
      std::string blobs = "<BlobPrefix><Name>llama/sub/</Name></BlobPrefix>";
      for (std::size_t at = first; at < last; ++at)
        blobs += blob("llama/" + std::to_string(100'000 + at) + " a+b%20&amp;\xC3\xA4", at);
      return {action::send{page(blobs, last == 2500 ? "" : "2!/+" + std::to_string(last))}};
    });
    storage_client here;
    const auto store = llama_at(server, with_key);
    const auto listed = here.run(store->list(here.services, here.terms));
    REQUIRE_MESSAGE(listed, (listed ? "" : listed.error().what()));
    REQUIRE(listed->size() == 2500);
    for (std::size_t at = 0; at < 2500; ++at)
      CHECK((*listed)[at] == object_entry{std::to_string(100'000 + at) + " a+b%20&\xC3\xA4", at});
    CHECK(here.retries() == 3);
    const auto requests = server.requests();
    REQUIRE(requests.size() == 6);
    for (const auto& request : requests) {
      CHECK(is_signed(request, "mine"));
      CHECK(request.path() == "/mine/models");
      CHECK(parameter(request, "restype") == "container");
      CHECK(parameter(request, "prefix") == "llama/");
      CHECK(parameter(request, "delimiter") == "/");
    }
    CHECK(parameter(requests[5], "marker") == "2!/+2000");
  }

  TEST_CASE("all that lies under a prefix is listed without a delimiter") {
    scripted_server server([](const seen_request&) -> steps {
      return {action::send{page(blob("llama/sub/deep/b", 7) + blob("llama/a", 5), "")}};
    });
    storage_client here;
    const auto store = llama_at(server, with_key);
    const auto listed = here.run(store->list_all(here.services, here.terms));
    REQUIRE_MESSAGE(listed, (listed ? "" : listed.error().what()));
    CHECK(*listed == std::vector<object_entry>{{"a", 5}, {"sub/deep/b", 7}});
    const auto requests = server.requests();
    REQUIRE(requests.size() == 1);
    CHECK(is_signed(requests[0], "mine"));
    CHECK(requests[0].target.find("delimiter") == std::string::npos);
  }

  TEST_CASE("an empty page is not the end, directories and what lies elsewhere are left out") {
    scripted_server server([](const seen_request& request) -> steps {
      if (parameter(request, "marker").empty()) return {action::send{page("", "next")}};
      return {action::send{page(blob("llama/dir", 0, "<ResourceType>directory</ResourceType>") +
                                blob("llama/") + blob("other/x") +
                                "<Blob><Name Encoded=\"true\">llama%2F%EF%BF%BF</Name><Properties>"
                                "<Content-Length>7</Content-Length></Properties></Blob>" +
                                blob("llama/b", 5))}};
    });
    storage_client here;
    const auto listed = here.run(llama_at(server, with_key)->list(here.services, here.terms));
    REQUIRE(listed);
    CHECK(*listed == std::vector<object_entry>{{"b", 5}, {"\xEF\xBF\xBF", 7}});
  }

  TEST_CASE("a listing that does not end, or is none, is refused") {
    storage_client here;
    scripted_server endless(refuse(page(blob("llama/a"), "again")));
    const auto listed = here.run(llama_at(endless, with_key)->list(here.services, here.terms));
    REQUIRE_FALSE(listed);
    CHECK(listed.error().kind() == errc::protocol_error);
    CHECK(endless.requests().size() == 2);

    scripted_server portal(refuse(answer(200, {}, "<html>a captive portal</html>")));
    const auto none = here.run(llama_at(portal, with_key)->list(here.services, here.terms));
    REQUIRE_FALSE(none);
    CHECK(none.error().kind() == errc::protocol_error);

    scripted_server missing(refuse(azure_refusal(404, "ContainerNotFound")));
    const auto gone = here.run(llama_at(missing, with_key)->list(here.services, here.terms));
    REQUIRE_FALSE(gone);
    CHECK(gone.error().kind() == errc::not_found);
    CHECK(says(gone.error(), "ContainerNotFound"));
  }

  TEST_CASE("a container without a prefix is refused, and says what is expected") {
    for (const char* const location : {"az://models", "az://models/", "az://models//"}) {
      const auto store = azure_store_at(location, with_key);
      REQUIRE_FALSE(store);
      CHECK(store.error().kind() == errc::invalid_request);
      CHECK(says(store.error(), "az://models/path/to/model"));
    }
  }
}

}  // namespace
}  // namespace headrace
