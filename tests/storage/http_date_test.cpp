#include "storage/http_date.hpp"

#include <doctest/doctest.h>

#include <chrono>
#include <string>

using namespace std::chrono_literals;
using headrace::parse_http_date;
using headrace::parse_retry_after;
using std::chrono::sys_days;
using std::chrono::sys_seconds;
using std::chrono::year;

namespace {

constexpr sys_seconds now = sys_days{year{2025} / 6 / 1} + 12h;

}  // namespace

TEST_SUITE("unit") {
  TEST_CASE("the three forms of a date name the same instant") {
    constexpr sys_seconds expected{784111777s};
    CHECK(parse_http_date("Sun, 06 Nov 1994 08:49:37 GMT", now) == expected);
    CHECK(parse_http_date("Sunday, 06-Nov-94 08:49:37 GMT", now) == expected);
    CHECK(parse_http_date("Sun Nov  6 08:49:37 1994", now) == expected);
    CHECK(parse_http_date(" Sun, 06 Nov 1994 08:49:37 GMT ", now) == expected);
    CHECK(parse_http_date("Wed Nov 16 08:49:37 1994", now) == expected + std::chrono::days{10});
  }

  TEST_CASE("a year of two digits is the latest that is not more than 50 years ahead") {
    CHECK(parse_http_date("Sunday, 01-Jun-25 00:00:00 GMT", now) == sys_days{year{2025} / 6 / 1});
    CHECK(parse_http_date("Sunday, 01-Jun-75 00:00:00 GMT", now) == sys_days{year{2075} / 6 / 1});
    CHECK(parse_http_date("Sunday, 01-Jun-76 00:00:00 GMT", now) == sys_days{year{1976} / 6 / 1});
    CHECK(parse_http_date("Sunday, 01-Jun-00 00:00:00 GMT", sys_days{year{2099} / 1 / 1}) ==
          sys_days{year{2100} / 6 / 1});
  }

  TEST_CASE("leap days and leap seconds are dates, other days beyond the calendar are not") {
    CHECK(parse_http_date("Thu, 29 Feb 2024 23:59:59 GMT", now) ==
          sys_days{year{2024} / 3 / 1} - 1s);
    CHECK(parse_http_date("Sat, 31 Dec 2016 23:59:60 GMT", now) == sys_days{year{2017} / 1 / 1});
    CHECK(parse_http_date("Fri, 31 Dec 9999 23:59:59 GMT", now).has_value());
    for (const auto* text : {"Wed, 29 Feb 2023 00:00:00 GMT", "Sun, 31 Apr 2024 00:00:00 GMT",
                             "Sun, 00 Nov 1994 08:49:37 GMT", "Sun, 32 Jan 1994 08:49:37 GMT",
                             "Sun, 06 Nov 1994 24:00:00 GMT", "Sun, 06 Nov 1994 08:60:00 GMT",
                             "Sun, 06 Nov 1994 08:49:61 GMT"}) {
      CAPTURE(std::string(text));
      CHECK_FALSE(parse_http_date(text, now).has_value());
    }
  }

  TEST_CASE("what is not exactly one of the forms is no date") {
    for (const auto* text : {"", "Sun", "Sun, 06 Nov 1994 08:49:37",
                             "Sun, 06 Nov 1994 08:49:37 UTC", "Sun, 06 Nov 1994 08:49:37 GMT+1",
                             "Sun, 6 Nov 1994 08:49:37 GMT", "sun, 06 nov 1994 08:49:37 gmt",
                             "06 Nov 1994 08:49:37 GMT", "Sun,  06 Nov 1994 08:49:37 GMT",
                             "Sun, 06 Nov 94 08:49:37 GMT", "Sunday, 06-Nov-1994 08:49:37 GMT",
                             "Sun Nov 6 08:49:37 1994", "Sun, 06 Foo 1994 08:49:37 GMT",
                             "Sun, -6 Nov 1994 08:49:37 GMT", "Sun, 06 Nov +994 08:49:37 GMT",
                             "1994-11-06T08:49:37Z", "Sun, 06 Nov 1994 8:49:37 GMT"}) {
      CAPTURE(std::string(text));
      CHECK_FALSE(parse_http_date(text, now).has_value());
    }
  }

  TEST_CASE("Retry-After is seconds or a date, never negative and never without end") {
    CHECK(parse_retry_after("0", now) == 0s);
    CHECK(parse_retry_after("120", now) == 120s);
    CHECK(parse_retry_after(" 1 ", now) == 1s);
    CHECK(parse_retry_after("999999", now) == 999999s);
    CHECK(parse_retry_after("Sun, 01 Jun 2025 12:00:30 GMT", now) == 30s);
    CHECK(parse_retry_after("Sunday, 01-Jun-25 12:00:30 GMT", now) == 30s);
    CHECK(parse_retry_after("Sun Jun  1 12:00:30 2025", now) == 30s);
    CHECK(parse_retry_after("Sun, 01 Jun 2025 11:59:59 GMT", now) == 0s);
    const auto longest = parse_retry_after("99999999999999999999999999999999", now);
    REQUIRE(longest.has_value());
    CHECK(*longest > 24h * 365);
    CHECK(parse_retry_after("18446744073709551615", now) == longest);
    CHECK(parse_retry_after("Fri, 31 Dec 9999 23:59:59 GMT", now) == longest);
  }

  TEST_CASE("a Retry-After that is neither is none") {
    for (const auto* text : {"", " ", "-1", "+1", "1.5", "1s", "soon", "0x10", "1, 2"}) {
      CAPTURE(std::string(text));
      CHECK_FALSE(parse_retry_after(text, now).has_value());
    }
  }
}
