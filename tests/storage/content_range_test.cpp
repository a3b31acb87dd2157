#include "storage/content_range.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <optional>
#include <string>

using headrace::byte_range;
using headrace::content_range;
using headrace::parse_content_range;
using headrace::parse_decimal;

TEST_SUITE("unit") {
  TEST_CASE("a content range gives the bytes and the total") {
    CHECK(parse_content_range("bytes 0-9/1234") == content_range{byte_range{0, 10}, 1234});
    CHECK(parse_content_range("bytes 5-5/6") == content_range{byte_range{5, 1}, 6});
    CHECK(parse_content_range("bytes 100-199/*") ==
          content_range{byte_range{100, 100}, std::nullopt});
    CHECK(parse_content_range("bytes */1234") == content_range{std::nullopt, 1234});
    CHECK(parse_content_range("bytes */0") == content_range{std::nullopt, 0});
    CHECK(parse_content_range("Bytes 0-0/1") == content_range{byte_range{0, 1}, 1});
    CHECK(parse_content_range(" bytes 0-9/10\t") == content_range{byte_range{0, 10}, 10});
    CHECK(parse_content_range("bytes 0-18446744073709551613/18446744073709551614") ==
          content_range{byte_range{0, 18446744073709551614U}, 18446744073709551614U});
  }

  TEST_CASE("anything but the grammar is no content range") {
    for (const auto* text : {"",
                             "bytes",
                             "bytes ",
                             "bytes 0-9",
                             "bytes 0-9/",
                             "bytes /10",
                             "bytes -/10",
                             "bytes 0-/10",
                             "bytes -9/10",
                             "bytes */*",
                             "bytes *",
                             "bytes=0-9/10",
                             "bytes: 0-9/10",
                             "bytes  0-9/10",
                             "bytes\t0-9/10",
                             "bytes 0 - 9/10",
                             "bytes 0-9 /10",
                             "bytes 0-9/ 10",
                             "bytes 0-9/10/10",
                             "bytes 0-9-9/10",
                             "bytes +0-9/10",
                             "bytes 0-+9/10",
                             "bytes 0-9/+10",
                             "bytes 0x0-9/10",
                             "bytes 0-9/10, 20-29/100",
                             "items 0-9/10",
                             "bytesx 0-9/10",
                             "bytes 9-0/10",
                             "bytes 0-10/10",
                             "bytes 0-9/9",
                             "bytes 0-0/0",
                             "bytes 0-18446744073709551615/*",
                             "bytes 0-18446744073709551616/*",
                             "bytes 18446744073709551616-18446744073709551617/*",
                             "bytes 0-9/18446744073709551616",
                             "bytes 0-9/99999999999999999999999999"}) {
      CAPTURE(std::string(text));
      CHECK_FALSE(parse_content_range(text).has_value());
    }
    CHECK_FALSE(parse_content_range(std::string_view("bytes 0-9/1\0"
                                                     "0",
                                                     13))
                    .has_value());
  }

  TEST_CASE("a decimal is digits alone and fits into 64 bits") {
    CHECK(parse_decimal("0") == 0U);
    CHECK(parse_decimal("007") == 7U);
    CHECK(parse_decimal("18446744073709551615") == UINT64_MAX);
    for (const auto* text :
         {"", " 1", "1 ", "+1", "-1", "1.0", "1e3", "0x1", "18446744073709551616",
          "99999999999999999999", "000000000000000000001"}) {
      CAPTURE(std::string(text));
      CHECK_FALSE(parse_decimal(text).has_value());
    }
  }
}
