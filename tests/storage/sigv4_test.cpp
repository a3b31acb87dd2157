#include "storage/sigv4.hpp"

#include <doctest/doctest.h>

#include <chrono>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

using namespace std::chrono_literals;
using headrace::aws_credentials;
using headrace::canonical_query;
using headrace::signable_request;
using headrace::sigv4_signer;

namespace {

using fields = std::vector<std::pair<std::string, std::string>>;

std::string field(const fields& added, std::string_view name) {
  for (const auto& [known, value] : added) {
    if (known == name) return value;
  }
  return "(absent)";
}

bool has(const fields& added, std::string_view name) { return field(added, name) != "(absent)"; }

// The AWS documentation of S3: "Signature Calculations for the Authorization Header".
const aws_credentials documentation{"AKIAIOSFODNN7EXAMPLE",
                                    "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", ""};
constexpr auto documentation_time = std::chrono::sys_days{std::chrono::year{2013} / 5 / 24};

std::string signed_as_documented(const fields& query, const fields& headers,
                                 std::string_view path = "/") {
  sigv4_signer signer;
  signable_request request;
  request.host = "examplebucket.s3.amazonaws.com";
  request.path = path;
  request.query = query;
  request.headers = headers;
  return field(signer.sign(request, documentation, documentation_time), "Authorization");
}

std::string documented(std::string_view names, std::string_view signature) {
  return "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request, SignedHeaders=" +
         std::string(names) + ", Signature=" + std::string(signature);
}

// The signing test suite of AWS, as aws-c-auth publishes it; the cases that header authentication
// without path normalisation covers.
struct vector {
  const char* name;
  const char* method;
  const char* path;
  fields query;
  fields headers;
  const char* signed_headers;
  const char* signature;
  const char* token = "";
};

const vector suite[] = {
    {"get-vanilla",
     "GET",
     "/",
     {},
     {},
     "host;x-amz-date",
     "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"},
    {"post-vanilla",
     "POST",
     "/",
     {},
     {},
     "host;x-amz-date",
     "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b"},
    {"get-vanilla-with-session-token",
     "GET",
     "/",
     {},
     {},
     "host;x-amz-date;x-amz-security-token",
     "07ec1639c89043aa0e3e2de82b96708f198cceab042d4a97044c66dd9f74e7f8",
     "6e86291e8372ff2a2260956d9b8aae1d763fbf315fa00fa31553b73ebf194267"},
    {"post-sts-header-before",
     "POST",
     "/",
     {},
     {},
     "host;x-amz-date;x-amz-security-token",
     "85d96828115b5dc0cfc3bd16ad9e210dd772bbebba041836c64533a82be05ead",
     "AQoDYXdzEPT//////////wEXAMPLEtc764bNrC9SAPBSM22wDOk4x4HIZ8j4FZTwdQWLWsKWHGBuFqwAeMicRXmxfpSPfIeoIYRqTflfKD8YUuwthAx7"
     "mSEI/qkPpKPi/kMcGdQrmGdeehM4IC1NtBmUpp2wUE8phUZampKsburEDy0KPkyQDYwT7WZ0wq5VSXDvp75YU9HFvlRd8Tx6q6fE8YQcHNVXAkiY9q6d"
     "+xo0rKwT38xVqr7ZD0u0iPPkUL64lIZbqBAz+scqKmlzm8FDrypNC9Yjc8fPOLn9FX9KSYvKTr4rvx3iSIlTJabIQwj2ICCR/oLxBA=="},
    {"get-unreserved",
     "GET",
     "/-._~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz",
     {},
     {},
     "host;x-amz-date",
     "07ef7494c76fa4850883e2b006601f940f8a34d404d0cfa977f52a65bbf5f24f"},
    {"get-utf8",
     "GET",
     "/%E1%88%B4",
     {},
     {},
     "host;x-amz-date",
     "8318018e0b0f223aa2bbf98705b62bb787dc9c0e678f255a891fd03141be5d85"},
    {"get-space-unnormalized",
     "GET",
     "/example%20space/",
     {},
     {},
     "host;x-amz-date",
     "652487583200325589f1fba4c7e578f72c47cb61beeca81406b39ddec1366741"},
    {"get-slashes-unnormalized",
     "GET",
     "//example//",
     {},
     {},
     "host;x-amz-date",
     "87cca117541a147f6df867677d98a7d80dff226d2bfca9e4ffa899665623c7e5"},
    {"get-relative-unnormalized",
     "GET",
     "/example/..",
     {},
     {},
     "host;x-amz-date",
     "eca7ead57bb5aa5c8e28007acd4ff04e1ff9a0ff3b237ec1554a184887ff9282"},
    {"get-slash-dot-slash-unnormalized",
     "GET",
     "/./",
     {},
     {},
     "host;x-amz-date",
     "68714168e6557f8f2de0ef956fc24dc2593a4bd2961f8df51898d8a134695145"},
    {"get-vanilla-empty-query-key",
     "GET",
     "/",
     {{"Param1", "value1"}},
     {},
     "host;x-amz-date",
     "a67d582fa61cc504c4bae71f336f98b97f1ea3c7a6bfe1b6e45aec72011b9aeb"},
    {"get-vanilla-query-order-key-case",
     "GET",
     "/",
     {{"Param2", "value2"}, {"Param1", "value1"}},
     {},
     "host;x-amz-date",
     "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500"},
    {"get-vanilla-query-order-encoded",
     "GET",
     "/",
     {{"Param-3", "Value3"}, {"Param", "Value2"}, {"\xE1\x88\xB4", "Value1"}},
     {},
     "host;x-amz-date",
     "371d3713e185cc334048618a97f809c9ffe339c62934c032af5a0e595648fcac"},
    {"get-vanilla-query-unreserved",
     "GET",
     "/",
     {{"-._~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz",
       "-._~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"}},
     {},
     "host;x-amz-date",
     "9c3e54bfcdf0b19771a7f523ee5669cdf59bc7cc0884027167c21bb143a40197"},
    {"get-vanilla-utf8-query",
     "GET",
     "/",
     {{"\xE1\x88\xB4", "bar"}},
     {},
     "host;x-amz-date",
     "2cdec8eed098649ff3a119c94853b13c643bcf08f8b0a1d91e12c9027818dd04"},
    {"get-header-key-duplicate",
     "GET",
     "/",
     {},
     {{"My-Header1", "value2"}, {"My-Header1", "value2"}, {"My-Header1", "value1"}},
     "host;my-header1;x-amz-date",
     "c9d5ea9f3f72853aea855b47ea873832890dbdd183b4468f858259531a5138ea"},
    {"get-header-value-order",
     "GET",
     "/",
     {},
     {{"My-Header1", "value4"},
      {"My-Header1", "value1"},
      {"My-Header1", "value3"},
      {"My-Header1", "value2"}},
     "host;my-header1;x-amz-date",
     "08c7e5a9acfcfeb3ab6b2185e75ce8b1deb5e634ec47601a50643f830c755c01"},
    {"get-header-value-trim",
     "GET",
     "/",
     {},
     {{"My-Header1", " value1"}, {"My-Header2", " \"a   b   c\""}},
     "host;my-header1;my-header2;x-amz-date",
     "acc3ed3afb60bb290fc8d2dd0098b9911fcaa05412b367055dee359757a9c736"},
    {"post-header-key-sort",
     "POST",
     "/",
     {},
     {{"My-Header1", "value1"}},
     "host;my-header1;x-amz-date",
     "c5410059b04c1ee005303aed430f6e6645f61f4dc9e1461ec8f8916fdf18852c"},
    {"post-header-value-case",
     "POST",
     "/",
     {},
     {{"My-Header1", "VALUE1"}},
     "host;my-header1;x-amz-date",
     "cdbc9802e29d2942e5e10b5bccfdd67c5f22c7c4e8ae67b53629efa58b974b7d"},
};

}  // namespace

TEST_SUITE("unit") {
  TEST_CASE("signs S3's documented requests as documented") {
    CHECK(signed_as_documented({}, {{"Range", "bytes=0-9"}}, "/test.txt") ==
          documented("host;range;x-amz-content-sha256;x-amz-date",
                     "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"));
    CHECK(signed_as_documented({{"lifecycle", ""}}, {}) ==
          documented("host;x-amz-content-sha256;x-amz-date",
                     "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"));
    CHECK(signed_as_documented({{"max-keys", "2"}, {"prefix", "J"}}, {}) ==
          documented("host;x-amz-content-sha256;x-amz-date",
                     "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"));
  }

  TEST_CASE("agrees with the signing test suite of AWS") {
    sigv4_signer signer;
    for (const auto& expected : suite) {
      CAPTURE(std::string(expected.name));
      const aws_credentials credentials{"AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY",
                                        expected.token};
      signable_request request;
      request.method = expected.method;
      request.host = "example.amazonaws.com";
      request.path = expected.path;
      request.query = expected.query;
      request.headers = expected.headers;
      request.service = "service";
      const auto added =
          signer.sign(request, credentials,
                      std::chrono::sys_days{std::chrono::year{2015} / 8 / 30} + 12h + 36min);
      CHECK(
          field(added, "Authorization") ==
          "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, SignedHeaders=" +
              std::string(expected.signed_headers) + ", Signature=" + expected.signature);
      CHECK(field(added, "x-amz-date") == "20150830T123600Z");
      CHECK_FALSE(has(added, "x-amz-content-sha256"));
      CHECK(has(added, "x-amz-security-token") == !credentials.session_token.empty());
    }
  }

  TEST_CASE("the fields to send hold the time, the payload's hash and the token, and no secret") {
    sigv4_signer signer;
    signable_request request;
    request.host = "host";
    request.payload_hash = headrace::unsigned_payload;
    const aws_credentials credentials{"ID", "THE-SECRET", "token"};
    const auto added =
        signer.sign(request, credentials, documentation_time + 23h + 59min + 59s + 999ms);
    CHECK(field(added, "x-amz-date") == "20130524T235959Z");
    CHECK(field(added, "x-amz-content-sha256") == "UNSIGNED-PAYLOAD");
    CHECK(field(added, "x-amz-security-token") == "token");
    CHECK(field(added, "Authorization").find("x-amz-security-token") != std::string::npos);
    for (const auto& [name, value] : added) CHECK(value.find("THE-SECRET") == std::string::npos);
  }

  TEST_CASE("a remembered key is not taken for another day, region, service or secret") {
    sigv4_signer warm;
    aws_credentials credentials = documentation;
    signable_request request;
    request.host = "host";
    auto time = headrace::system_time(documentation_time);
    const auto same_as_cold = [&] {
      sigv4_signer cold;
      const auto expected = cold.sign(request, credentials, time);
      CHECK(warm.sign(request, credentials, time) == expected);
      CHECK(warm.sign(request, credentials, time) == expected);
    };
    same_as_cold();
    time += 24h;
    same_as_cold();
    request.region = "eu-west-1";
    same_as_cold();
    request.service = "sts";
    same_as_cold();
    credentials.secret_access_key = "another";
    same_as_cold();
    for (int day = 0; day < 40; ++day) {
      time += 24h;
      same_as_cold();
    }
  }

  TEST_CASE("signs from several threads at once") {
    sigv4_signer signer;
    const auto sign_some = [&](int seed) {
      signable_request request;
      request.host = "examplebucket.s3.amazonaws.com";
      request.path = "/test.txt";
      const fields headers{{"Range", "bytes=0-9"}};
      request.headers = headers;
      int right = 0;
      for (int i = 0; i < 50; ++i) {
        (void)signer.sign(request, documentation, documentation_time + 24h * ((seed + i) % 12 + 1));
        const auto added = signer.sign(request, documentation, documentation_time);
        if (field(added, "Authorization")
                .find("f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41") !=
            std::string::npos) {
          ++right;
        }
      }
      return right;
    };
    int first = 0;
    std::thread other([&] { first = sign_some(0); });
    const int second = sign_some(5);
    other.join();
    CHECK(first == 50);
    CHECK(second == 50);
  }

  TEST_CASE("a canonical query is sorted by encoded name, then value, and encodes slashes") {
    CHECK(canonical_query(fields{}).empty());
    CHECK(canonical_query(fields{{"prefix", "a/b c"}, {"list-type", "2"}, {"delimiter", "/"}}) ==
          "delimiter=%2F&list-type=2&prefix=a%2Fb%20c");
    CHECK(canonical_query(fields{{"a", "2"}, {"a", "1"}, {"a-", "0"}, {"B", ""}}) ==
          "B=&a=1&a=2&a-=0");
  }
}
