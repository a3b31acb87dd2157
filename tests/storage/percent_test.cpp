#include "storage/percent.hpp"

#include <doctest/doctest.h>

#include <string>

using headrace::percent_decode;
using headrace::percent_encode;
using headrace::plus;
using headrace::slash;

TEST_SUITE("unit") {
  TEST_CASE("unreserved characters and slashes of a path stay as they are") {
    const std::string unreserved =
        "-._~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    CHECK(percent_encode(unreserved) == unreserved);
    CHECK(percent_encode(unreserved, slash::encoded) == unreserved);
    CHECK(percent_encode("a/b//c/../.") == "a/b//c/../.");
    CHECK(percent_encode("").empty());
  }

  TEST_CASE("everything else is encoded, once, in upper case") {
    CHECK(percent_encode("a b+c%20*'()!@:?#[]") ==
          "a%20b%2Bc%2520%2A%27%28%29%21%40%3A%3F%23%5B%5D");
    CHECK(percent_encode("\xE1\x88\xB4") == "%E1%88%B4");
    CHECK(percent_encode(std::string("\0\xff", 2)) == "%00%FF");
    CHECK(percent_encode("a/b", slash::encoded) == "a%2Fb");
  }

  TEST_CASE("decoding takes both cases of digits and leaves a plus alone unless told") {
    CHECK(percent_decode("a%2fb%2Fc+d") == "a/b/c+d");
    CHECK(percent_decode("a+b%2B", plus::space) == "a b+");
    CHECK(percent_decode("%2520") == "%20");
    CHECK(percent_decode("") == "");
    CHECK(percent_decode("%00") == std::string(1, '\0'));
  }

  TEST_CASE("an escape that is none is not decoded") {
    for (const auto* text : {"%", "a%", "%2", "a%4", "%g0", "%0g", "%-1", "% 1", "%%41"}) {
      CAPTURE(text);
      CHECK_FALSE(percent_decode(text).has_value());
    }
  }

  TEST_CASE("every byte survives the way there and back") {
    std::string bytes;
    for (int i = 0; i < 256; ++i) bytes += static_cast<char>(i);
    CHECK(percent_decode(percent_encode(bytes)) == bytes);
    CHECK(percent_decode(percent_encode(bytes, slash::encoded), plus::space) == bytes);
  }
}
