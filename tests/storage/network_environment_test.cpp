#include "storage/network_environment.hpp"

#include <doctest/doctest.h>

#include <map>
#include <optional>
#include <string>

namespace headrace {
namespace {

proxy_settings proxies(std::map<std::string, std::string> variables) {
  const auto lookup = [&variables](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end()) return std::nullopt;
    return found->second;
  };
  return read_network_settings({}, lookup)->proxy;
}

TEST_SUITE("unit") {
  TEST_CASE("without variables there is no proxy") {
    const auto none = proxies({});
    CHECK(none == proxy_settings());
    CHECK(none.http.empty());
    CHECK(none.https.empty());
    CHECK(none.bypass.empty());
  }

  TEST_CASE("http_proxy counts in lower case alone: a CGI program gets the other from outside") {
    CHECK(proxies({{"http_proxy", "one"}}).http == "one");
    CHECK(proxies({{"http_proxy", "one"}}).https.empty());
    CHECK(proxies({{"HTTP_PROXY", "evil"}}) == proxy_settings());
  }

  TEST_CASE("the others count in either case, lower case first") {
    CHECK(proxies({{"https_proxy", "one"}, {"HTTPS_PROXY", "two"}}).https == "one");
    CHECK(proxies({{"HTTPS_PROXY", "two"}}).https == "two");
    CHECK(proxies({{"HTTPS_PROXY", "two"}}).http.empty());
    CHECK(proxies({{"no_proxy", "one"}, {"NO_PROXY", "two"}}).bypass == "one");
    CHECK(proxies({{"NO_PROXY", "two"}}).bypass == "two");
  }

  TEST_CASE("all_proxy stands in for what is not named") {
    const auto all = proxies({{"all_proxy", "one"}, {"ALL_PROXY", "two"}});
    CHECK(all.http == "one");
    CHECK(all.https == "one");
    const auto some = proxies({{"ALL_PROXY", "all"}, {"https_proxy", "secure"}});
    CHECK(some.http == "all");
    CHECK(some.https == "secure");
  }

  TEST_CASE("an empty variable is one that is not set") {
    CHECK(proxies({{"https_proxy", ""}, {"HTTPS_PROXY", "two"}}).https == "two");
    CHECK(proxies({{"http_proxy", ""}, {"no_proxy", ""}}) == proxy_settings());
  }

  TEST_CASE("the variable that counted is remembered, for messages") {
    const auto found = proxies({{"ALL_PROXY", "all"}, {"HTTPS_PROXY", "secure"}});
    CHECK(found.http_named_by == "ALL_PROXY");
    CHECK(found.https_named_by == "HTTPS_PROXY");
  }
}

}  // namespace
}  // namespace headrace
