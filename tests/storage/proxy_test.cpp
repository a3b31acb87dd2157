#include "storage_client.hpp"

#include <doctest/doctest.h>
#include <support/checkpoint.hpp>
#include <support/scripted_server.hpp>
#include <support/useless_addresses.hpp>

#include <cstdlib>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

namespace headrace {
namespace {

using test::answer;
using test::answer_with;
using test::says;
using test::scripted_server;
using test::seen_request;
using test::steps;
using test::storage_client;
namespace action = test::action;

const std::string object = test::content_of("object", 300'000);

const std::string denied = answer(407, {{"Proxy-Authenticate", "Basic realm=\"proxy\""}}, "denied");

/// The variables of a proxy, as long as this lives, and no others.
class proxy_variables {
 public:
  struct variable {
    const char* name;
    std::string value;
  };

  proxy_variables(std::initializer_list<variable> given) {
    clear();
    for (const auto& [name, value] : given) ::setenv(name, value.c_str(), 1);
  }
  ~proxy_variables() { clear(); }
  proxy_variables(const proxy_variables&) = delete;
  proxy_variables& operator=(const proxy_variables&) = delete;

 private:
  static void clear() {
    for (const char* name : {"http_proxy", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY",
                             "no_proxy", "NO_PROXY"})
      ::unsetenv(name);
  }
};

std::string url_of(const scripted_server& proxy) {
  return "http://user:hunter2@127.0.0.1:" + std::to_string(proxy.port());
}

storage_options options_for(const std::string& endpoint) {
  storage_options options;
  options.endpoint = endpoint;
  options.region = "eu-west-1";
  options.credentials = aws_credentials{"AKIDEXAMPLE", "wJalrXUtnFEMI-secret", ""};
  return options;
}

/// The object by way of what the variables say. Its host exists nowhere.
result<std::string> open_by_proxy(storage_client& here, const std::string& scheme) {
  const auto source = storage_client::source("s3://models/x.safetensors", "x.safetensors",
                                             options_for(scheme + "://store.invalid:9443"));
  return here.open(*source);
}

void check_no_secret(const error& failed) {
  for (const char* secret :
       {"hunter2", "dXNlcjpodW50ZXIy", "wJalrXUtnFEMI", "AKIDEXAMPLE", "Signature"}) {
    CAPTURE(secret);
    CHECK_FALSE(says(failed, secret));
  }
}

void check_no_secret_of_ours(const seen_request& request) {
  CHECK(request.method == "CONNECT");
  CHECK(request.target == "store.invalid:9443");
  for (const auto& [name, value] : request.fields) {
    CAPTURE(name);
    CHECK(value.find("AKIDEXAMPLE") == std::string::npos);
    CHECK(name != "Authorization");
  }
}

TEST_SUITE("fault") {
  TEST_CASE("a proxy's 407 is denied access at once, says what to set, and holds no secret") {
    for (const std::string scheme : {"http", "https"}) {
      CAPTURE(scheme);
      scripted_server proxy([](const seen_request&) -> steps { return {action::send{denied}}; });
      const std::string variable = scheme + "_proxy";
      const proxy_variables set{{variable.c_str(), url_of(proxy)}};
      storage_client here;
      const auto opened = open_by_proxy(here, scheme);
      REQUIRE_FALSE(opened);
      const error& failed = opened.error();
      CHECK(failed.kind() == errc::access_denied);
      CHECK(failed.context().status == 407);
      CHECK(says(failed, "the proxy http://127.0.0.1:" + std::to_string(proxy.port())));
      CHECK(says(failed, variable));
      CHECK(says(failed, "s3://models/x.safetensors"));
      check_no_secret(failed);
      const auto requests = proxy.requests();
      REQUIRE(requests.size() == 1);
      CHECK(requests[0].field("Proxy-Authorization") == "Basic dXNlcjpodW50ZXIy");
      if (scheme == "https") check_no_secret_of_ours(requests[0]);
    }
  }

  TEST_CASE("a CONNECT that is cut is tried again, and in the end an error without a secret") {
    for (const test::step& cut : {test::step(action::close{}), test::step(action::reset{})}) {
      scripted_server proxy([&cut](const seen_request& request) -> steps {
        if (request.number % 2 == 0) return {cut};
        return {action::send{"HTTP/1.1 200 Conn"}, cut};
      });
      const proxy_variables set{{"HTTPS_PROXY", url_of(proxy)}};
      storage_client here;
      here.terms.limits.retries = 3;
      const auto opened = open_by_proxy(here, "https");
      REQUIRE_FALSE(opened);
      const error& failed = opened.error();
      CHECK(failed.kind() == errc::connect_error);
      CHECK(says(failed, "the proxy http://127.0.0.1:" + std::to_string(proxy.port())));
      CHECK(says(failed, "HTTPS_PROXY"));
      check_no_secret(failed);
      const auto requests = proxy.requests();
      CHECK(requests.size() == 4);
      for (const auto& request : requests) check_no_secret_of_ours(request);
    }
  }

  TEST_CASE("what a proxy must not reach is not tried again, what it cannot reach is") {
    for (const auto& [status, attempts] :
         {std::pair(403, 1u), std::pair(400, 1u), std::pair(502, 3u), std::pair(503, 3u)}) {
      CAPTURE(status);
      const std::string refusal = answer(status, {}, "<html>no</html>");
      scripted_server proxy(
          [&refusal](const seen_request&) -> steps { return {action::send{refusal}}; });
      const proxy_variables set{{"all_proxy", url_of(proxy)}};
      storage_client here;
      here.terms.limits.retries = 2;
      const auto opened = open_by_proxy(here, "https");
      REQUIRE_FALSE(opened);
      CHECK(opened.error().kind() == errc::connect_error);
      CHECK(opened.error().context().status == status);
      CHECK(says(opened.error(), "refuses a connection to https://store.invalid:9443"));
      check_no_secret(opened.error());
      CHECK(proxy.requests().size() == attempts);
    }
  }

  TEST_CASE("what a proxy says behind its answer to CONNECT is never the origin's") {
    scripted_server proxy([](const seen_request&) -> steps {
      return {action::send{"HTTP/1.1 200 OK\r\n\r\nHTTP/1.1 200 OK\r\n\r\n"}};
    });
    const proxy_variables set{{"https_proxy", url_of(proxy)}};
    storage_client here;
    const auto opened = open_by_proxy(here, "https");
    REQUIRE_FALSE(opened);
    CHECK(opened.error().kind() == errc::protocol_error);
    CHECK(proxy.requests().size() == 1);
  }

  TEST_CASE("http goes through a proxy in the absolute form, and faults there are resumed") {
    scripted_server proxy([](const seen_request& request) -> steps {
      const std::string whole = answer_with(object, request);
      if (request.number == 1) return {action::send{whole.substr(0, 50'000)}, action::reset{}};
      if (request.number == 2) return {action::send{answer(504, {}, "gateway")}};
      return {action::send{whole}};
    });
    const proxy_variables set{{"http_proxy", url_of(proxy)}};
    storage_client here;
    const auto source = storage_client::source("s3://models/x.safetensors", "x.safetensors",
                                               options_for("http://store.invalid"));
    const auto first = here.open(*source);
    REQUIRE(first);
    CHECK(*first == object.substr(0, 65'536));
    const auto rest = here.read(*source, 65'536, 200'000);
    REQUIRE(rest);
    CHECK(*rest == object.substr(65'536, 200'000));
    const auto requests = proxy.requests();
    REQUIRE(requests.size() == 4);
    for (const auto& request : requests) {
      CHECK(request.method == "GET");
      CHECK(request.target == "http://store.invalid/models/x.safetensors");
      CHECK(request.field("Host") == "store.invalid");
      CHECK(request.field("Proxy-Authorization") == "Basic dXNlcjpodW50ZXIy");
    }
    CHECK(requests[0].connection == requests[1].connection);
    CHECK(requests[3].field("If-Match") == "\"v1\"");
  }

  TEST_CASE("the origin never hears of the proxy, where NO_PROXY names it") {
    scripted_server server([](const seen_request& request) -> steps {
      return {action::send{answer_with(object, request)}};
    });
    for (const char* list : {"127.0.0.1", "10.0.0.0/8,127.0.0.0/8", "*"}) {
      CAPTURE(list);
      const proxy_variables set{{"http_proxy", "http://user:hunter2@proxy.invalid:1"},
                                {"NO_PROXY", list}};
      storage_client here;
      const auto source = storage_client::source(server.url("/x.safetensors"), "x.safetensors");
      CHECK(here.open(*source));
      const auto seen = server.requests().back();
      CHECK(seen.target == "/x.safetensors");
      CHECK_FALSE(seen.field("Proxy-Authorization"));
    }
  }

  TEST_CASE("a proxy variable that is no URL is an error of the requests that would go there") {
    scripted_server server([](const seen_request& request) -> steps {
      return {action::send{answer_with(object, request)}};
    });
    struct malformed {
      const char* value;
      errc kind;
    };
    for (const auto& [value, kind] :
         {malformed{"http://user:hunter2@proxy:99999999", errc::invalid_request},
          malformed{"hunter2@@", errc::invalid_request},
          malformed{"socks5://user:hunter2@127.0.0.1:1080", errc::unsupported}}) {
      CAPTURE(value);
      const auto location = server.url("/x.safetensors");
      {
        const proxy_variables set{{"ALL_PROXY", value}};
        storage_client here;
        const auto opened = here.open(*storage_client::source(location, "x.safetensors"));
        REQUIRE_FALSE(opened);
        CHECK(opened.error().kind() == kind);
        CHECK(says(opened.error(), "ALL_PROXY"));
        check_no_secret(opened.error());
      }
      const proxy_variables set{{"ALL_PROXY", value}, {"no_proxy", "127.0.0.1"}};
      storage_client here;
      CHECK(here.open(*storage_client::source(location, "x.safetensors")));
    }
  }

  TEST_CASE("an object at a literal IPv6 address is read like any other") {
    if (!test::has_ipv6()) {
      MESSAGE("no IPv6 here");
      return;
    }
    scripted_server server(
        [](const seen_request& request) -> steps {
          return {action::send{answer_with(object, request)}};
        },
        {.address = "::1"});
    storage_client here;
    const auto source = storage_client::source(server.url("/x.safetensors"), "x.safetensors");
    const auto opened = here.open(*source);
    REQUIRE(opened);
    CHECK(*opened == object.substr(0, 65'536));
    CHECK(server.requests().at(0).field("Host") == "[::1]:" + std::to_string(server.port()));
  }
}

}  // namespace
}  // namespace headrace
