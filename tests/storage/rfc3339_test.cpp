#include "storage/rfc3339.hpp"

#include <doctest/doctest.h>

namespace headrace {
namespace {

using namespace std::chrono_literals;

TEST_SUITE("unit") {
  TEST_CASE("a time is read with a fraction or an offset, and without") {
    const auto expected =
        std::chrono::sys_days(std::chrono::year(2014) / 10 / 2) + 15h + 1min + 23s;
    for (const char* const text :
         {"2014-10-02T15:01:23Z", "2014-10-02T15:01:23.045123456Z", "2014-10-02t15:01:23z",
          "2014-10-02T17:01:23+02:00", "2014-10-02T09:31:23.5-05:30"}) {
      CAPTURE(text);
      const auto read = parse_rfc3339(text);
      REQUIRE(read);
      CHECK((*read == expected));
    }
  }

  TEST_CASE("times that no clock reaches are the nearest that one does") {
    for (const char* const text : {"0000-01-01T00:00:00Z", "0230-01-01T00:00:00Z",
                                   "1969-12-31T23:59:59Z", "1970-01-01T00:00:00+01:00"}) {
      CAPTURE(text);
      CHECK((parse_rfc3339(text) == std::chrono::sys_seconds(0s)));
    }
    const auto never = parse_rfc3339("9999-12-31T23:59:59Z");
    REQUIRE(never);
    CHECK((never == parse_rfc3339("2255-01-01T00:00:00Z")));
    const std::chrono::system_clock::time_point reached = *never;
    CHECK((std::chrono::floor<std::chrono::seconds>(reached) == *never));
  }

  TEST_CASE("what is no time of the calendar is nothing") {
    for (const char* const text :
         {"", "2014-10-02", "2014-10-02T15:01:23", "2014-13-02T15:01:23Z", "2014-02-30T15:01:23Z",
          "2014-10-02T24:01:23Z", "2014-10-02T15:60:23Z", "2014-10-02T15:01:23.Z",
          "2014-10-02T15:01:23Zx", "2014-10-02T15:01:23+2:00", "2014-10-02T15:01:23+24:00",
          "14-10-02T15:01:23Z", "-014-10-02T15:01:23Z", "2014-10-02T15:01:2"}) {
      CAPTURE(text);
      CHECK_FALSE(parse_rfc3339(text));
    }
  }
}

}  // namespace
}  // namespace headrace
