#include "http/http_proxy.hpp"

#include <headrace/coro/sync_wait.hpp>
#include <headrace/http/http_connection.hpp>

#include <doctest/doctest.h>
#include <support/scripted_stream.hpp>

#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace headrace {
namespace {

using detail::bypasses_proxy;
using detail::http_proxy;
using detail::open_tunnel;
using detail::proxy_for;
using test::scripted_stream;
using test::stream_script;

bool says(const error& failed, std::string_view part) {
  return std::string_view(failed.what()).find(part) != std::string_view::npos;
}

std::string where(std::string_view url) {
  const auto proxy = http_proxy::parse(url, "http_proxy");
  INFO(url);
  REQUIRE(proxy);
  return proxy->at.to_string();
}

std::string authorization(std::string_view url) {
  const auto proxy = http_proxy::parse(url, "http_proxy");
  INFO(url);
  REQUIRE(proxy);
  return proxy->authorization;
}

error refusal(std::string_view url) {
  const auto proxy = http_proxy::parse(url, "ALL_PROXY");
  INFO(url);
  REQUIRE_FALSE(proxy);
  CHECK(says(proxy.error(), "ALL_PROXY"));
  return proxy.error();
}

struct tunnelled {
  std::shared_ptr<stream_script> script = std::make_shared<stream_script>();

  explicit tunnelled(std::string answer) {
    if (!answer.empty()) script->says(std::move(answer));
  }
  result<std::unique_ptr<byte_stream>> open(const std::string& url) {
    auto proxy = http_proxy::parse(url, "https_proxy");
    REQUIRE(proxy);
    return sync_wait(open_tunnel(std::make_unique<scripted_stream>(script), std::move(*proxy),
                                 {"https", "store.test", 443}));
  }
};

const std::string proxy_url = "http://user:hunter2@proxy.test:3128";

error denial(const std::string& answer, const std::string& url = proxy_url) {
  tunnelled proxy(answer);
  auto stream = proxy.open(url);
  INFO(answer);
  REQUIRE_FALSE(stream);
  CHECK(proxy.script->destroyed);
  const error failed = stream.error();
  CHECK(says(failed, "the proxy http://proxy.test:3128 (https_proxy)"));
  CHECK(failed.context().peer == "192.0.2.7:80");
  for (const char* secret : {"hunter2", "dXNlcjpodW50ZXIy"}) CHECK_FALSE(says(failed, secret));
  return failed;
}

TEST_SUITE("unit") {
  TEST_CASE("a proxy's URL is read as curl reads it") {
    CHECK(where("http://proxy.test:3128") == "http://proxy.test:3128");
    CHECK(where("http://proxy.test:3128/") == "http://proxy.test:3128");
    CHECK(where("HTTP://Proxy.Test") == "http://proxy.test:1080");
    CHECK(where("https://proxy.test") == "https://proxy.test:443");
    CHECK(where("proxy.test:8080") == "http://proxy.test:8080");
    CHECK(where("proxy.test") == "http://proxy.test:1080");
    CHECK(where("user:p%3Aw@proxy.test") == "http://proxy.test:1080");
    CHECK(where("[::1]:3128") == "http://[::1]:3128");
    CHECK(where("http://[fd00::1]") == "http://[fd00::1]:1080");
    CHECK(where("127.0.0.1:3128") == "http://127.0.0.1:3128");
  }

  TEST_CASE("user and password are decoded, and make Basic credentials") {
    CHECK(authorization("http://proxy.test").empty());
    CHECK(authorization("http://Aladdin:open%20sesame@proxy.test") ==
          "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==");
    CHECK(authorization("user@proxy.test") == "Basic dXNlcjo=");
    CHECK(authorization("http://u:a%3Ab%40c%2Fd@proxy.test:1") == "Basic dTphOmJAYy9k");
    CHECK(authorization("http://%C3%BCser:p%25@proxy.test") == "Basic w7xzZXI6cCU=");
  }

  TEST_CASE("what is no proxy's URL is refused, and its value never shown") {
    for (const char* url :
         {"http://user:hunter2@", "http://user:hunter2@proxy.test:99999", "user:hunter2@:80",
          "http://user:hunt er2@proxy.test", "http://user:hunter2%zz@proxy.test",
          "http://hunter2@a@b", "http://hunter2\r\nX: y", "http://proxy.test:hunter2", "://",
          "http://", " ", "ftp://hunter2@proxy.test", "hunter2://proxy.test"}) {
      const error failed = refusal(url);
      CHECK(failed.kind() == errc::invalid_request);
      CHECK_FALSE(says(failed, "hunter2"));
    }
    for (const char* url : {"socks5://user:hunter2@proxy.test", "socks4a://proxy.test",
                            "SOCKS5H://127.0.0.1:9050", "socks://x"}) {
      const error failed = refusal(url);
      CHECK(failed.kind() == errc::unsupported);
      CHECK(says(failed, "SOCKS"));
      CHECK_FALSE(says(failed, "hunter2"));
    }
  }

  TEST_CASE("NO_PROXY names domains, with all that is below them") {
    for (const char* list :
         {"example.com", ".example.com", "example.com.", "EXAMPLE.com", "other.test,example.com",
          "other.test example.com", " , other.test ,\texample.com , ", "com", ".com"}) {
      CAPTURE(list);
      CHECK(bypasses_proxy(list, "example.com"));
      CHECK(bypasses_proxy(list, "www.example.com"));
      CHECK(bypasses_proxy(list, "a.b.example.com."));
    }
    CHECK(bypasses_proxy(".example.com", "example.com."));
    CHECK_FALSE(bypasses_proxy("example.com", "nonexample.com"));
    CHECK_FALSE(bypasses_proxy("www.example.com", "example.com"));
    CHECK_FALSE(bypasses_proxy("example.com", "example.com.test"));
    CHECK_FALSE(bypasses_proxy("example.com:443", "example.com"));
    CHECK_FALSE(bypasses_proxy("*.example.com", "www.example.com"));
    CHECK_FALSE(bypasses_proxy("", "example.com"));
    CHECK_FALSE(bypasses_proxy(",. ,", "example.com"));
  }

  TEST_CASE("an asterisk alone names everything, and is no entry of a list") {
    CHECK(bypasses_proxy("*", "example.com"));
    CHECK(bypasses_proxy(" * ", "10.0.0.1"));
    CHECK(bypasses_proxy("*", "::1"));
    CHECK_FALSE(bypasses_proxy("*,other.test", "example.com"));
    CHECK_FALSE(bypasses_proxy("other.test,*", "example.com"));
  }

  TEST_CASE("NO_PROXY names addresses and networks, IPv6 with and without brackets") {
    CHECK(bypasses_proxy("127.0.0.1", "127.0.0.1"));
    CHECK_FALSE(bypasses_proxy("127.0.0.1", "127.0.0.10"));
    CHECK_FALSE(bypasses_proxy("0.0.1", "127.0.0.1"));
    CHECK_FALSE(bypasses_proxy(".1", "127.0.0.1"));
    CHECK(bypasses_proxy("10.0.0.0/8", "10.255.0.1"));
    CHECK_FALSE(bypasses_proxy("10.0.0.0/8", "11.0.0.1"));
    CHECK(bypasses_proxy("192.168.0.0/22", "192.168.3.255"));
    CHECK_FALSE(bypasses_proxy("192.168.0.0/22", "192.168.4.0"));
    CHECK(bypasses_proxy("192.0.2.7/32", "192.0.2.7"));
    CHECK_FALSE(bypasses_proxy("192.0.2.7/32", "192.0.2.6"));
    CHECK(bypasses_proxy("0.0.0.0/0", "8.8.8.8"));
    CHECK_FALSE(bypasses_proxy("0.0.0.0/0", "::1"));
    for (const char* malformed :
         {"10.0.0.0/", "10.0.0.0/33", "10.0.0.0/-1", "10.0.0.0/8x", "10/8", "/8", "fd00::/129"}) {
      CAPTURE(malformed);
      CHECK_FALSE(bypasses_proxy(malformed, "10.0.0.0"));
      CHECK_FALSE(bypasses_proxy(malformed, "fd00::"));
    }
    for (const char* list : {"::1", "[::1]", "0:0:0:0:0:0:0:1", "::/127", "[::1]/128"}) {
      CAPTURE(list);
      CHECK(bypasses_proxy(list, "::1"));
      CHECK_FALSE(bypasses_proxy(list, "::2"));
    }
    CHECK(bypasses_proxy("fd00::/8", "fdff::1"));
    CHECK_FALSE(bypasses_proxy("fd00::/8", "fe00::1"));
    // Names are not looked up.
    CHECK_FALSE(bypasses_proxy("127.0.0.0/8", "localhost"));
  }

  TEST_CASE(
      "each kind of origin has its own proxy, and a broken one breaks nobody else's requests") {
    network_settings settings;
    settings.proxy = {.http = "http://one.test:1",
                      .https = "socks5://two.test",
                      .bypass = "inside.test",
                      .https_named_by = "ALL_PROXY"};
    const auto network = std::make_shared<const network_settings>(settings);
    const auto plain = proxy_for(http_route({"http", "store.test", 80}, network));
    REQUIRE(plain);
    REQUIRE(*plain);
    CHECK((*plain)->describe() == "the proxy http://one.test:1 (http_proxy)");
    const auto secure = proxy_for(http_route({"https", "store.test", 443}, network));
    REQUIRE_FALSE(secure);
    CHECK(secure.error().kind() == errc::unsupported);
    CHECK(says(secure.error(), "ALL_PROXY"));
    const auto inside = proxy_for(http_route({"https", "a.inside.test", 443}, network));
    REQUIRE(inside);
    CHECK_FALSE(*inside);
    const auto none = proxy_for(http_route("https", "store.test", 443));
    REQUIRE(none);
    CHECK_FALSE(*none);
  }

  TEST_CASE("a tunnel is asked for with the proxy's credentials and nothing else") {
    for (const char* answer :
         {"HTTP/1.1 200 OK\r\n\r\n", "HTTP/1.0 200 Connection established\r\n\r\n",
          "HTTP/1.1 299 Fine\r\nContent-Length: 5\r\n\r\n",
          "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
          "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"}) {
      CAPTURE(answer);
      tunnelled proxy(answer);
      auto stream = proxy.open(proxy_url);
      REQUIRE(stream);
      CHECK(proxy.script->sent ==
            "CONNECT store.test:443 HTTP/1.1\r\nHost: store.test:443\r\nUser-Agent: headrace/" +
                proxy.script->sent.substr(proxy.script->sent.find("headrace/") + 9));
      CHECK(proxy.script->sent.ends_with("Proxy-Authorization: Basic dXNlcjpodW50ZXIy\r\n\r\n"));
      CHECK_FALSE(proxy.script->destroyed);
      CHECK((*stream)->peer() == "192.0.2.7:80");
    }
    tunnelled open("HTTP/1.1 200 OK\r\n\r\n");
    REQUIRE(open.open("proxy.test"));
    CHECK(open.script->sent.find("Proxy-Authorization") == std::string::npos);
  }

  TEST_CASE("407 is denied access, and says what to do about it") {
    const std::string basic =
        "HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic realm=\"x\"\r\n"
        "Content-Length: 4\r\n\r\nbody";
    error failed = denial(basic);
    CHECK(failed.kind() == errc::access_denied);
    CHECK(failed.context().status == 407);
    CHECK(says(failed, "refuses the user and password in https_proxy"));
    failed = denial("HTTP/1.0 401 Unauthorized\r\n\r\n");
    CHECK(failed.kind() == errc::access_denied);
    CHECK(failed.context().status == 401);
    failed = denial(basic, "http://proxy.test:3128");
    CHECK(failed.kind() == errc::access_denied);
    CHECK(says(failed, "write https_proxy as http://user:password@proxy.test:3128"));
    failed = denial(
        "HTTP/1.1 407 No\r\nProxy-Authenticate: Negotiate\r\nproxy-authenticate: NTLM\r\n\r\n");
    CHECK(failed.kind() == errc::access_denied);
    CHECK(says(failed, "other than Basic"));
    failed = denial(
        "HTTP/1.1 407 No\r\nProxy-Authenticate: Negotiate\r\nproxy-authenticate: BASIC\r\n\r\n");
    CHECK_FALSE(says(failed, "other than Basic"));
  }

  TEST_CASE("every other refusal is a connect_error with its status") {
    for (const int status : {302, 400, 403, 404, 429, 500, 502, 503}) {
      const error failed = denial("HTTP/1.1 " + std::to_string(status) + " No\r\n\r\n");
      CHECK(failed.kind() == errc::connect_error);
      CHECK(failed.context().status == status);
      CHECK(says(failed, "refuses a connection to https://store.test:443"));
    }
  }

  TEST_CASE("a CONNECT that is cut, anywhere, is a connect_error without a status") {
    const std::string whole = "HTTP/1.1 200 OK\r\nVia: x\r\n\r\n";
    for (std::size_t size = 0; size < whole.size(); ++size) {
      const error failed = denial(whole.substr(0, size));
      CHECK(failed.kind() == errc::connect_error);
      CHECK(failed.context().status == 0);
    }
  }

  TEST_CASE("bytes behind the answer, and an answer that is none, are protocol errors") {
    for (const char* answer :
         {"HTTP/1.1 200 OK\r\n\r\nX", "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nX",
          "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n\x16\x03\x03",
          "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", "\x16\x03\x01\x02",
          "HTTP/1.1 101 Switching Protocols\r\n\r\n"}) {
      CHECK(denial(answer).kind() == errc::protocol_error);
    }
    CHECK(denial("HTTP/1.1 200 OK\r\nX: " + std::string(70'000, 'a') + "\r\n\r\n").kind() ==
          errc::protocol_error);
  }

  TEST_CASE("a proxy that forwards is sent absolute targets and its credentials, each time") {
    const auto script = std::make_shared<stream_script>();
    http_connection connection(std::make_unique<scripted_stream>(script));
    auto proxy = http_proxy::parse(proxy_url, "http_proxy");
    REQUIRE(proxy);
    connection.forward_through(std::make_shared<const http_proxy>(std::move(*proxy)),
                               {"http", "store.test", 8080});
    http_request request;
    request.target = "/a%20b?c=d";
    request.host = "store.test:8080";
    request.fields.emplace_back("Authorization", "Bearer origin");
    for (int turn = 0; turn < 2; ++turn) {
      script->sent.clear();
      script->says("HTTP/1.1 204 No Content\r\n\r\n");
      REQUIRE(sync_wait(connection.send(request)));
      CHECK(script->sent.starts_with(
          "GET http://store.test:8080/a%20b?c=d HTTP/1.1\r\nHost: store.test:8080\r\n"));
      CHECK(
          script->sent.ends_with("Authorization: Bearer origin\r\nProxy-Authorization: Basic "
                                 "dXNlcjpodW50ZXIy\r\n\r\n"));
    }
    script->says("HTTP/1.1 407 No\r\nContent-Length: 0\r\n\r\n");
    const auto denied = sync_wait(connection.send(request));
    REQUIRE_FALSE(denied);
    CHECK(denied.error().kind() == errc::access_denied);
    CHECK(denied.error().context().status == 407);
    CHECK(says(denied.error(), "the proxy http://proxy.test:3128 (http_proxy) refuses"));
    CHECK_FALSE(connection.reusable());
  }

  TEST_CASE("a connection that is no tunnel keeps its stream") {
    const auto script = std::make_shared<stream_script>();
    http_connection connection(std::make_unique<scripted_stream>(script));
    CHECK_FALSE(connection.release());
    http_request request;
    request.host = "store.test";
    script->says("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    REQUIRE(sync_wait(connection.send(request)));
    CHECK_FALSE(connection.release());
  }
}

}  // namespace
}  // namespace headrace
