#include "azure_client.hpp"

#include <headrace/coro/when.hpp>
#include <headrace/coro/with.hpp>

#include <doctest/doctest.h>
#include <support/checkpoint.hpp>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <stop_token>
#include <string>
#include <vector>

namespace headrace {
namespace {

using namespace std::chrono_literals;
using test::answer;
using test::answer_with;
using test::azure_refusal;
using test::azure_store_at;
using test::azure_variables;
using test::llama_at;
using test::mine_at;
using test::says;
using test::scripted_server;
using test::seen_request;
using test::steps;
using test::storage_client;
namespace action = test::action;

const std::string object = test::content_of("object", 300'000);
constexpr const char* name = "x.safetensors";

/// Tokens T0, T1, … as Entra gives them.
std::string token_answer(std::size_t number) {
  return answer(200, {{"Content-Type", "application/json"}},
                R"({"token_type":"Bearer","expires_in":3599,"access_token":"T)" +
                    std::to_string(number) + "\"}");
}

scripted_server::script give_tokens() {
  return [](const seen_request& request) -> steps {
    return {action::send{token_answer(request.number)}};
  };
}

/// A store that knows tokens from `least` on.
scripted_server::script serve_from(std::size_t least) {
  return [least](const seen_request& request) -> steps {
    const auto carried = request.field("Authorization").value_or("");
    const bool known = carried.starts_with("Bearer T") && std::stoul(carried.substr(8)) >= least;
    if (known) return {action::send{answer_with(object, request)}};
    return {action::send{azure_refusal(
        401, "InvalidAuthenticationInfo",
        {{"x-ms-client-request-id", request.field("x-ms-client-request-id").value_or("")}})}};
  };
}

azure_variables secret_at(const scripted_server& entra) {
  return {{"AZURE_TENANT_ID", "contoso.example"},
          {"AZURE_CLIENT_ID", "app-id"},
          {"AZURE_CLIENT_SECRET", "hunter2&~"},
          {"AZURE_AUTHORITY_HOST", entra.url("/")}};
}

azure_variables machine_at(const scripted_server& metadata) {
  return {{"AZURE_POD_IDENTITY_AUTHORITY_HOST", metadata.url("/")}};
}

/// A file that goes with the test.
class token_file {
 public:
  token_file()
      : path_(std::filesystem::temp_directory_path() /
              ("headrace-token-" + std::to_string(::getpid()))) {}
  ~token_file() { std::filesystem::remove(path_); }
  token_file(const token_file&) = delete;
  token_file& operator=(const token_file&) = delete;
  void write(const std::string& text) const { std::ofstream(path_) << text; }
  [[nodiscard]] std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

task<result<std::size_t>> open_only(range_source* from, storage_loop* loop, const transfer* terms,
                                    std::span<std::byte> into) {
  auto opened = co_await from->open(*loop, *terms, into);
  co_return opened;
}

task<result<void>> read_both(range_source* from, storage_loop* loop, const transfer* terms,
                             range_sink* first, range_sink* second) {
  std::vector<task<result<void>>> reads;
  reads.push_back(from->read(*loop, *terms, {100'000, 1'000}, *first));
  reads.push_back(from->read(*loop, *terms, {200'000, 1'000}, *second));
  auto both = co_await when_all(std::move(reads));
  for (const auto& read : both) {
    if (!read) co_return failure{read.error()};
  }
  co_return result<void>();
}

TEST_SUITE("fault") {
  TEST_CASE("a token that the options hold is sent as it is") {
    scripted_server server(serve_from(0));
    storage_client here;
    auto options = mine_at(server);
    options.token = "T7";
    auto store = azure_store_at("az://models/llama", {}, options);
    REQUIRE(store);
    REQUIRE(here.open(*(*store)->source(name)));
    CHECK(server.requests().at(0).field("Authorization") == "Bearer T7");
    CHECK(here.run((*store)->credentials(here.services))->source == "the option storage.token");
    options.token = "hunter2";
    store = azure_store_at("az://models/llama", {}, options);
    REQUIRE(store);
    const auto opened = here.open(*(*store)->source(name));
    REQUIRE_FALSE(opened);
    CHECK(opened.error().kind() == errc::access_denied);
    CHECK(says(opened.error(), "the token has run out or is not for Azure Storage"));
    CHECK_FALSE(says(opened.error(), "hunter2"));
    CHECK(server.requests().size() == 2);
  }

  TEST_CASE("a client secret gets one token for all requests") {
    scripted_server entra(give_tokens());
    scripted_server server(serve_from(0));
    storage_client here;
    const auto store = llama_at(server, secret_at(entra));
    const auto source = store->source(name);
    REQUIRE(here.open(*source));
    REQUIRE(here.read(*source, 100'000, 1'000));
    const auto asked = entra.requests();
    REQUIRE(asked.size() == 1);
    CHECK(asked[0].method == "POST");
    CHECK(asked[0].target == "/contoso.example/oauth2/v2.0/token");
    CHECK(asked[0].field("Content-Type") == "application/x-www-form-urlencoded");
    CHECK(asked[0].body ==
          "grant_type=client_credentials&client_id=app-id"
          "&scope=https%3A%2F%2Fstorage.azure.com%2F.default&client_secret=hunter2%26~");
    for (const auto& request : server.requests()) {
      CHECK(request.field("Authorization") == "Bearer T0");
      CHECK(request.field("x-ms-version"));
      CHECK(request.field("x-ms-date"));
    }
    const auto report = here.run(store->credentials(here.services));
    REQUIRE(report);
    CHECK(report->source ==
          "the variables AZURE_TENANT_ID, AZURE_CLIENT_ID and AZURE_CLIENT_SECRET");
    CHECK(report->identity == "app-id");
    CHECK(report->expires);
    CHECK(entra.requests().size() == 1);
  }

  TEST_CASE("the file of a workload identity is read again for each token") {
    const token_file file;
    file.write("assertion-1\n");
    scripted_server entra(give_tokens());
    scripted_server server(serve_from(1));
    storage_client here;
    auto set = secret_at(entra);
    set.erase("AZURE_CLIENT_SECRET");
    set["AZURE_FEDERATED_TOKEN_FILE"] = file.path();
    const auto store = llama_at(server, set);
    REQUIRE(here.run(store->credentials(here.services)));
    file.write("assertion-2");
    REQUIRE(here.open(*store->source(name)));
    const auto asked = entra.requests();
    REQUIRE(asked.size() == 2);
    const std::string type =
        "client_assertion_type=urn%3Aietf%3Aparams%3Aoauth%3A"
        "client-assertion-type%3Ajwt-bearer&client_assertion=";
    CHECK(asked[0].body.ends_with(type + "assertion-1"));
    CHECK(asked[1].body.ends_with(type + "assertion-2"));
  }

  TEST_CASE("a token file that cannot be used is named, and its content is not shown") {
    const token_file file;
    scripted_server server(serve_from(0));
    storage_client here;
    azure_variables set = {{"AZURE_TENANT_ID", "t"},
                           {"AZURE_CLIENT_ID", "c"},
                           {"AZURE_FEDERATED_TOKEN_FILE", file.path()}};
    const auto said = [&] {
      const auto opened = here.open(*llama_at(server, set)->source(name));
      REQUIRE_FALSE(opened);
      CHECK(opened.error().kind() == errc::invalid_request);
      CHECK(says(opened.error(), file.path()));
      CHECK(says(opened.error(), "AZURE_FEDERATED_TOKEN_FILE"));
      CHECK_FALSE(says(opened.error(), "hunter2"));
      return std::string(opened.error().what());
    };
    CHECK(said().find("is not readable") != std::string::npos);
    file.write("");
    CHECK(said().find("holds no token") != std::string::npos);
    file.write("hunter2\nhunter2");
    CHECK(said().find("holds no token") != std::string::npos);
    file.write(std::string(70'000, 'a'));
    CHECK(said().find("64 KiB") != std::string::npos);
    CHECK(server.requests().empty());
  }

  TEST_CASE("the identity of App Service is asked for with its header") {
    scripted_server identity([](const seen_request&) -> steps {
      return {action::send{answer(
          200, {}, R"({"access_token":"T3","expires_on":"4102444800","token_type":"Bearer"})")}};
    });
    scripted_server server(serve_from(3));
    storage_client here;
    const auto store = llama_at(server, {{"IDENTITY_ENDPOINT", identity.url("/msi/token/")},
                                         {"IDENTITY_HEADER", "hunter2"},
                                         {"AZURE_CLIENT_ID", "one-of-two"}});
    REQUIRE(here.open(*store->source(name)));
    const auto asked = identity.requests();
    REQUIRE(asked.size() == 1);
    CHECK(asked[0].method == "GET");
    CHECK(asked[0].target ==
          "/msi/token/?api-version=2019-08-01&resource=https%3A%2F%2Fstorage.azure.com%2F"
          "&client_id=one-of-two");
    CHECK(asked[0].field("X-IDENTITY-HEADER") == "hunter2");
    const auto report = here.run(store->credentials(here.services));
    REQUIRE(report);
    CHECK(report->source == "managed identity, by IDENTITY_ENDPOINT and IDENTITY_HEADER");
    REQUIRE(report->expires);
    CHECK(*report->expires == system_time(std::chrono::seconds(4102444800)));
  }

  TEST_CASE("the machine's metadata service gives a token") {
    scripted_server metadata([](const seen_request& request) -> steps {
      if (request.number == 0) return {action::send{answer(503)}};
      return {action::send{answer(200, {}, R"({"access_token":"T5","expires_in":"86399"})")}};
    });
    scripted_server server(serve_from(5));
    storage_client here;
    const auto store = llama_at(server, machine_at(metadata));
    REQUIRE(here.open(*store->source(name)));
    const auto asked = metadata.requests();
    REQUIRE(asked.size() == 2);
    CHECK(asked[1].target ==
          "/metadata/identity/oauth2/token?api-version=2018-02-01"
          "&resource=https%3A%2F%2Fstorage.azure.com%2F");
    CHECK(asked[1].field("Metadata") == "true");
    CHECK(here.run(store->credentials(here.services))->source ==
          "managed identity, by the machine's metadata service");
  }

  TEST_CASE(
      "where no identity is, requests are anonymous, and a refusal says what was looked for") {
    scripted_server no_identity([](const seen_request&) -> steps {
      return {action::send{answer(
          400, {}, R"({"error":"invalid_request","error_description":"Identity not found"})")}};
    });
    scripted_server other_cloud([](const seen_request&) -> steps {
      return {action::send{answer(200, {}, "<html>not Azure's</html>")}};
    });
    std::vector<azure_variables> nobody = {machine_at(no_identity), machine_at(other_cloud)};
    {
      const scripted_server gone(give_tokens());
      nobody.push_back(machine_at(gone));
    }
    scripted_server server([](const seen_request& request) -> steps {
      if (request.path() == "/mine/models/llama/private.safetensors")
        return {action::send{azure_refusal(404, "ResourceNotFound")}};
      return {action::send{answer_with(object, request)}};
    });
    for (const auto& set : nobody) {
      storage_client here;
      const auto store = llama_at(server, set);
      REQUIRE(here.open(*store->source(name)));
      const auto opened = here.open(*store->source("private.safetensors"));
      REQUIRE_FALSE(opened);
      CHECK(opened.error().kind() == errc::not_found);
      CHECK(says(opened.error(), "no credentials were found, so requests are anonymous"));
      CHECK(says(opened.error(), "AZURE_STORAGE_CONNECTION_STRING"));
      const auto report = here.run(store->credentials(here.services));
      REQUIRE(report);
      CHECK(report->source.starts_with("none: requests are anonymous"));
    }
    CHECK(no_identity.requests().size() == 1);
    for (const auto& request : server.requests()) CHECK_FALSE(request.field("Authorization"));
  }

  TEST_CASE("an identity that AZURE_CLIENT_ID names has to be there") {
    scripted_server metadata([](const seen_request&) -> steps {
      return {action::send{answer(
          400, {}, R"({"error":"invalid_request","error_description":"Identity not found"})")}};
    });
    scripted_server server(serve_from(0));
    storage_client here;
    auto set = machine_at(metadata);
    set["AZURE_CLIENT_ID"] = "of-mine";
    const auto opened = here.open(*llama_at(server, set)->source(name));
    REQUIRE_FALSE(opened);
    CHECK(opened.error().kind() == errc::access_denied);
    CHECK(says(opened.error(), "Identity not found"));
    CHECK(says(opened.error(), "AZURE_CLIENT_ID"));
    CHECK(server.requests().empty());
  }

  TEST_CASE("nothing is looked for where the options want no credentials") {
    scripted_server metadata(give_tokens());
    scripted_server server([](const seen_request& request) -> steps {
      if (request.number == 0) return {action::send{answer_with(object, request)}};
      return {action::send{azure_refusal(404, "ResourceNotFound")}};
    });
    storage_client here;
    auto options = mine_at(server);
    options.anonymous = true;
    auto set = machine_at(metadata);
    set["AZURE_STORAGE_KEY"] = test::account_key;
    auto store = azure_store_at("az://models/llama", set, options);
    REQUIRE(store);
    REQUIRE(here.open(*(*store)->source(name)));
    CHECK_FALSE(server.requests().at(0).field("Authorization"));
    const auto opened = here.open(*(*store)->source(name));
    REQUIRE_FALSE(opened);
    CHECK_FALSE(says(opened.error(), "no credentials were found"));
    CHECK(metadata.requests().empty());
  }

  TEST_CASE("a secret that is refused is an error that names the variables and not the secret") {
    scripted_server entra([](const seen_request& request) -> steps {
      const std::string body =
          request.number == 0
              ? R"({"error":"invalid_client","error_description":"AADSTS7000215: Invalid client secret provided.\r\nTrace ID: 1"})"
              : R"({"error":"invalid_client","error_description":"not )" + request.body + "\"}";
      return {action::send{answer(401, {}, body)}};
    });
    scripted_server server(serve_from(0));
    for (int round = 0; round < 2; ++round) {
      storage_client here;
      const auto opened = here.open(*llama_at(server, secret_at(entra))->source(name));
      REQUIRE_FALSE(opened);
      const error& failed = opened.error();
      CHECK(failed.kind() == errc::access_denied);
      CHECK(failed.context().server_code == "invalid_client");
      CHECK(says(failed, "AZURE_TENANT_ID, AZURE_CLIENT_ID and AZURE_CLIENT_SECRET"));
      CHECK(says(failed, "AADSTS7000215: Invalid client secret provided.") == (round == 0));
      CHECK_FALSE(says(failed, "Trace ID"));
      CHECK_FALSE(says(failed, "hunter2"));
    }
    CHECK(entra.requests().size() == 2);
    CHECK(server.requests().empty());
  }

  TEST_CASE("a lifetime that is none is not believed, and the token is used") {
    for (const char* const lifetime :
         {"-5", "99999999999999999999", "9223372036854775807", "\"soon\"", "null", "1e300", "{}"}) {
      CAPTURE(lifetime);
      scripted_server entra([lifetime](const seen_request&) -> steps {
        return {action::send{answer(
            200, {}, std::string(R"({"access_token":"T1","expires_in":)") + lifetime + "}")}};
      });
      scripted_server server(serve_from(1));
      storage_client here;
      const auto store = llama_at(server, secret_at(entra));
      REQUIRE(here.open(*store->source(name)));
      const auto report = here.run(store->credentials(here.services));
      REQUIRE(report);
      CHECK_FALSE(report->expires);
    }
  }

  TEST_CASE("a request's id that the user sets stays, and a refused token is still replaced") {
    scripted_server entra(give_tokens());
    scripted_server server(serve_from(1));
    storage_client here;
    auto options = mine_at(server);
    options.headers = {{"X-MS-Client-Request-Id", "of the user's"}};
    auto store = azure_store_at("az://models/llama", secret_at(entra), options);
    REQUIRE(store);
    REQUIRE(here.open(*(*store)->source(name)));
    CHECK(entra.requests().size() == 2);
    for (const auto& request : server.requests())
      CHECK(request.field("x-ms-client-request-id") == "of the user's");
  }

  TEST_CASE("an answer without a token is none") {
    const std::vector<std::string> bodies = {
        "",
        "<html>a captive portal</html>",
        "[]",
        R"({"expires_in":3599})",
        R"({"access_token":17})",
        R"({"access_token":"a b"})",
        R"({"access_token":""})",
        R"({"access_token":")" + std::string(70'000, 'a') + "\"}",
        std::string(100, '['),
    };
    for (const auto& body : bodies) {
      CAPTURE(body.substr(0, 60));
      scripted_server entra(
          [&body](const seen_request&) -> steps { return {action::send{answer(200, {}, body)}}; });
      scripted_server server(serve_from(0));
      storage_client here;
      const auto opened = here.open(*llama_at(server, secret_at(entra))->source(name));
      REQUIRE_FALSE(opened);
      CHECK(opened.error().kind() == errc::protocol_error);
      CHECK(says(opened.error(), "without a token"));
      CHECK(server.requests().empty());
    }
  }

  TEST_CASE("a token that has run out is replaced once, and a second refusal is final") {
    scripted_server entra(give_tokens());
    scripted_server server(serve_from(1));
    storage_client here;
    here.terms.limits.retries = 0;
    const auto store = llama_at(server, secret_at(entra));
    const auto source = store->source(name);
    REQUIRE(here.open(*source));
    REQUIRE(here.read(*source, 100'000, 1'000));
    CHECK(entra.requests().size() == 2);
    CHECK(server.requests().size() == 3);

    scripted_server never(serve_from(1000));
    const auto opened = here.open(*llama_at(never, secret_at(entra))->source(name));
    REQUIRE_FALSE(opened);
    CHECK(opened.error().kind() == errc::access_denied);
    CHECK(says(opened.error(), "AZURE_CLIENT_SECRET"));
    CHECK(never.requests().size() == 2);
    CHECK(entra.requests().size() == 4);
  }

  TEST_CASE("a refusal that comes late does not throw away the token that has come since") {
    scripted_server entra(give_tokens());
    scripted_server server([](const seen_request& request) -> steps {
      if (request.number == 0) return {action::send{answer_with(object, request)}};
      const bool first_range = request.range()->begin == 100'000;
      const bool fresh = request.field("Authorization") == "Bearer T1";
      if (fresh) return {action::signal{"fresh"}, action::send{answer_with(object, request)}};
      const std::string refusal = azure_refusal(
          401, "InvalidAuthenticationInfo",
          {{"x-ms-client-request-id", request.field("x-ms-client-request-id").value_or("")}});
      // Both carry the old token; the second hears of it when the first has a new one.
      if (first_range) return {action::wait_for{"both"}, action::send{refusal}};
      return {action::signal{"both"}, action::wait_for{"fresh"}, action::send{refusal}};
    });
    storage_client here;
    const auto source = llama_at(server, secret_at(entra))->source(name);
    REQUIRE(here.open(*source));
    std::string first(1'000, '\0');
    std::string second(1'000, '\0');
    buffer_sink first_sink(std::as_writable_bytes(std::span(first)));
    buffer_sink second_sink(std::as_writable_bytes(std::span(second)));
    const auto read =
        here.run(read_both(source.get(), &here.services, &here.terms, &first_sink, &second_sink));
    REQUIRE_MESSAGE(read, (read ? "" : read.error().what()));
    CHECK(first == object.substr(100'000, 1'000));
    CHECK(second == object.substr(200'000, 1'000));
    CHECK(entra.requests().size() == 2);
  }

  TEST_CASE("an identity without the role is told which one it needs") {
    scripted_server entra(give_tokens());
    scripted_server server([](const seen_request&) -> steps {
      return {action::send{azure_refusal(403, "AuthorizationPermissionMismatch")}};
    });
    storage_client here;
    const auto opened = here.open(*llama_at(server, secret_at(entra))->source(name));
    REQUIRE_FALSE(opened);
    CHECK(opened.error().kind() == errc::access_denied);
    CHECK(says(opened.error(), "Storage Blob Data Reader"));
    CHECK(server.requests().size() == 1);
    CHECK(entra.requests().size() == 1);
  }

  TEST_CASE("a token service that fails for a while is asked again") {
    scripted_server entra([](const seen_request& request) -> steps {
      if (request.number == 0) return {action::send{answer(503)}};
      return {action::send{token_answer(request.number)}};
    });
    scripted_server server(serve_from(1));
    storage_client here;
    REQUIRE(here.open(*llama_at(server, secret_at(entra))->source(name)));
    CHECK(entra.requests().size() == 2);
  }

  TEST_CASE("a token may take longer than a connection may") {
    scripted_server entra([](const seen_request& request) -> steps {
      // Asked again after a tenth of a second at the least.
      if (request.number == 0) return {action::send{answer(503)}};
      return {action::send{token_answer(request.number)}};
    });
    scripted_server server(serve_from(1));
    storage_client here;
    here.terms.limits.connect_limit = 90ms;
    REQUIRE(here.open(*llama_at(server, secret_at(entra))->source(name)));
    CHECK(entra.requests().size() == 2);
    CHECK(here.retries() == 0);
  }

  TEST_CASE("a stop ends the wait for a token") {
    std::stop_source stop;
    scripted_server entra([&stop](const seen_request&) -> steps {
      stop.request_stop();
      return {action::stall{}};
    });
    scripted_server server(serve_from(0));
    storage_client here;
    const auto source = llama_at(server, secret_at(entra))->source(name);
    std::string first(65'536, '\0');
    const auto opened =
        here.run(with_stop(stop.get_token(), open_only(source.get(), &here.services, &here.terms,
                                                       std::as_writable_bytes(std::span(first)))));
    REQUIRE_FALSE(opened);
    CHECK(opened.error().kind() == errc::cancelled);
    CHECK(server.requests().empty());
  }
}

}  // namespace
}  // namespace headrace
