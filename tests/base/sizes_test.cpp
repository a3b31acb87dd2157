#include <headrace/base/sizes.hpp>

#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

using namespace headrace;

static_assert(1_KiB == 1024);
static_assert(16_MiB == 16777216);
static_assert(1_GiB == 1073741824);

TEST_SUITE("unit") {
  TEST_CASE("a size is bytes or a number with a unit, in any case") {
    const std::array<std::pair<std::string_view, std::uint64_t>, 21> expected = {{
        {"0", 0},
        {"4194304", 4194304},
        {"4MiB", 4_MiB},
        {"4M", 4_MiB},
        {"4MB", 4_MiB},
        {"4mib", 4_MiB},
        {"4 MiB", 4_MiB},
        {"7B", 7},
        {"7b", 7},
        {"1k", 1_KiB},
        {"1KiB", 1_KiB},
        {"2G", 2_GiB},
        {"3T", 3 * 1024 * 1_GiB},
        {"3TiB", 3 * 1024 * 1_GiB},
        {"1.5GiB", 3 * 512_MiB},
        {"0.5K", 512},
        {"0.0", 0},
        {"007", 7},
        {"18446744073709551615", UINT64_MAX},
        {"16777215T", std::uint64_t{16777215} << 40},
        {"1.5", 1},
    }};
    for (const auto& [text, bytes] : expected) {
      CAPTURE(text);
      const auto parsed = parse_size(text);
      REQUIRE(parsed);
      CHECK(*parsed == bytes);
    }
  }

  TEST_CASE("what is not a size is an invalid_request that shows it") {
    for (const std::string_view text : {"",
                                        " ",
                                        "M",
                                        "MiB",
                                        "-1",
                                        "+1",
                                        "1X",
                                        "1MX",
                                        "1MiBs",
                                        "1Mi",
                                        "1i",
                                        "1iB",
                                        "0x10",
                                        "1e6",
                                        "1.5e3",
                                        "1,5G",
                                        "16 M iB",
                                        "nan",
                                        "inf",
                                        "18446744073709551616",
                                        "16777216T",
                                        "99999999999999999999G",
                                        "9999999999.5G",
                                        "1.2.3",
                                        "1 2",
                                        ".5G",
                                        "M4"}) {
      CAPTURE(text);
      const auto parsed = parse_size(text);
      REQUIRE(!parsed);
      CHECK(parsed.error().kind() == errc::invalid_request);
      CHECK(parsed.error().message().find("'" + std::string(text) + "'") != std::string::npos);
    }
  }

  TEST_CASE("a size is written with three digits or more") {
    CHECK(format_size(0) == "0 B");
    CHECK(format_size(1023) == "1023 B");
    CHECK(format_size(1024) == "1.00 KiB");
    CHECK(format_size(1536) == "1.50 KiB");
    CHECK(format_size(10 * 1024) == "10.0 KiB");
    CHECK(format_size(1024 * 1024 - 1) == "1.00 MiB");
    CHECK(format_size(16_MiB) == "16.0 MiB");
    CHECK(format_size(3317850000) == "3.09 GiB");
    CHECK(format_size(5 * 1024 * 1_GiB) == "5.00 TiB");
    CHECK(format_size(UINT64_MAX) == "16777216.0 TiB");
  }

  TEST_CASE("what is written can be read again, but for rounding") {
    for (std::uint64_t bytes = 1; bytes < std::uint64_t{1} << 44; bytes = bytes * 3 + 1) {
      CAPTURE(bytes);
      const auto parsed = parse_size(format_size(bytes));
      REQUIRE(parsed);
      const auto difference = *parsed > bytes ? *parsed - bytes : bytes - *parsed;
      CHECK(difference <= bytes / 100);
    }
  }
}
