#include <headrace/base/error.hpp>

#include <headrace/base/result.hpp>

#include <doctest/doctest.h>

#include <array>
#include <cerrno>
#include <future>
#include <memory>
#include <set>
#include <string>
#include <system_error>
#include <type_traits>
#include <utility>

using namespace headrace;

namespace {

std::error_code system_code(int number) { return {number, std::system_category()}; }

static_assert(std::is_nothrow_copy_constructible_v<error>);
static_assert(std::is_nothrow_move_constructible_v<result<int>>);

/// Of a library that says what its codes are like.
class library_category final : public std::error_category {
 public:
  [[nodiscard]] const char* name() const noexcept override { return "library"; }
  [[nodiscard]] std::string message(int /*value*/) const override { return "a message"; }
  [[nodiscard]] std::error_condition default_error_condition(int value) const noexcept override {
    if (value == 1) return std::errc::connection_reset;
    if (value == 2) return {static_cast<int>(errc::tls_error), headrace::error_category()};
    return {value, *this};
  }
};

}  // namespace

TEST_SUITE("unit") {
  TEST_CASE("each kind has a name of its own, and a number that is none is internal") {
    std::set<std::string_view> names;
    for (int kind = 1; kind <= static_cast<int>(errc::internal); ++kind) {
      const auto name = to_string(static_cast<errc>(kind));
      CHECK(!name.empty());
      names.insert(name);
    }
    CHECK(names.size() == static_cast<std::size_t>(errc::internal));
    CHECK(to_string(errc::not_found) == "not_found");
    CHECK(to_string(errc::object_changed) == "object_changed");
    CHECK(to_string(errc::connect_error) == "connect_error");
    CHECK(to_string(errc::internal) == "internal");
    CHECK(to_string(static_cast<errc>(0)) == "internal");
    CHECK(to_string(static_cast<errc>(17)) == "internal");
    CHECK(to_string(static_cast<errc>(-1)) == "internal");
  }

  TEST_CASE("a kind is an error code of the headrace category") {
    const std::error_code code = errc::truncated;
    CHECK(code == errc::truncated);
    CHECK(code != errc::timeout);
    CHECK(std::string(code.category().name()) == "headrace");
    CHECK(code.message() == "truncated");
  }

  TEST_CASE("an error says its kind, its message and its context in one line") {
    const error failed(errc::truncated, "the body ended early",
                       {.uri = "s3://bucket/key",
                        .range = byte_range{.begin = 10, .size = 5},
                        .attempt = 3,
                        .peer = "192.0.2.7:443",
                        .status = 206,
                        .server_code = "SlowDown",
                        .request_id = "4711"});
    CHECK(
        std::string(failed.what()) ==
        "truncated: the body ended early: s3://bucket/key (bytes 10-14, attempt 3, peer 192.0.2.7:443, status 206, "
        "code SlowDown, request id 4711)");
    CHECK("truncated: " + failed.message() == failed.what());
    CHECK(failed.reason() == "the body ended early");
    CHECK(failed.kind() == errc::truncated);
    CHECK(failed.code() == errc::truncated);
    CHECK(failed.context().request_id == "4711");
  }

  TEST_CASE("what is not known is not mentioned, and a URI not twice") {
    CHECK(std::string(error(errc::internal, "lost").what()) == "internal: lost");
    CHECK(std::string(error(errc::not_found, "no s3://b/k here", {.uri = "s3://b/k"}).what()) ==
          "not_found: no s3://b/k here");
    CHECK(error(errc::timeout, "late", {.attempt = 1}).message() == "late");
    CHECK(error(errc::truncated, "none", {.range = byte_range{.begin = 7, .size = 0}}).message() ==
          "none (bytes 7-7)");
  }

  TEST_CASE("control characters cannot make a second line") {
    const error failed(errc::protocol_error, "bad\r\nheader\x7f\x1b[31m",
                       {.uri = "http://host/a\nb", .server_code = "one\ntwo"});
    for (const char each : failed.message()) CHECK(static_cast<unsigned char>(each) >= 0x20);
    CHECK(failed.message().find('\x7f') == std::string::npos);
    CHECK(failed.reason() == "bad\r\nheader\x7f\x1b[31m");
  }

  TEST_CASE("an error is filled in where it has a gap, and nowhere else") {
    const error bare(errc::timeout, "late", {.attempt = 2, .peer = "first"});
    const error filled = bare.with({.uri = "s3://b/k",
                                    .range = byte_range{.begin = 0, .size = 1},
                                    .attempt = 9,
                                    .peer = "second",
                                    .status = 500,
                                    .server_code = "code",
                                    .request_id = "id"});
    CHECK(filled.kind() == errc::timeout);
    CHECK(filled.reason() == "late");
    CHECK(filled.context().uri == "s3://b/k");
    CHECK(filled.context().attempt == 2);
    CHECK(filled.context().peer == "first");
    CHECK(filled.context().status == 500);
    CHECK(filled.context().server_code == "code");
    CHECK(filled.context().request_id == "id");
    CHECK(
        filled.message() ==
        "late: s3://b/k (bytes 0-0, attempt 2, peer first, status 500, code code, request id id)");
    CHECK(bare.context().uri.empty());
  }

  TEST_CASE("an error that was moved from still has its message") {
    error failed(errc::timeout, "late");
    const error taken = std::move(failed);
    CHECK(std::string(failed.what()) == "timeout: late");  // NOLINT: that is the point
    CHECK(std::string(taken.what()) == "timeout: late");
  }

  TEST_CASE("failed system calls become the kind that fits") {
    const std::array<std::pair<int, errc>, 18> expected = {{
        {ENOENT, errc::not_found},
        {ENOTDIR, errc::not_found},
        {EACCES, errc::access_denied},
        {EPERM, errc::access_denied},
        {ECANCELED, errc::cancelled},
        {ETIMEDOUT, errc::timeout},
        {ENOMEM, errc::out_of_memory},
        {ECONNREFUSED, errc::connect_error},
        {ECONNRESET, errc::connect_error},
        {EPIPE, errc::connect_error},
        {EHOSTUNREACH, errc::connect_error},
        {ENETUNREACH, errc::connect_error},
        {EADDRNOTAVAIL, errc::connect_error},
        {ENOSYS, errc::unsupported},
        {EINVAL, errc::invalid_request},
        {ESTALE, errc::object_changed},
        {EMFILE, errc::unavailable},
        {EIO, errc::unavailable},
    }};
    for (const auto& [number, kind] : expected) {
      CAPTURE(number);
      CHECK(kind_of(system_code(number)) == kind);
      CHECK(kind_of(std::error_code(number, std::generic_category())) == kind);
    }
    CHECK(kind_of(errc::throttled) == errc::throttled);
    CHECK(kind_of(std::make_error_code(std::future_errc::no_state)) == errc::internal);
    const library_category library;
    CHECK(kind_of({1, library}) == errc::connect_error);
    CHECK(kind_of({2, library}) == errc::tls_error);
    CHECK(kind_of({3, library}) == errc::internal);
    const error failed = system_failure(system_code(ENOENT), "cannot open /tmp/none");
    CHECK(failed.kind() == errc::not_found);
    CHECK(failed.message() == "cannot open /tmp/none: " + system_code(ENOENT).message());
    CHECK(system_failure(errc::cancelled, "stopped").message() == "stopped");
  }

  TEST_CASE("a result holds a value or an error") {
    result<std::unique_ptr<int>> good(std::make_unique<int>(4));
    REQUIRE(good);
    CHECK(**good == 4);
    const auto taken = std::move(good).value();
    CHECK(*taken == 4);
    result<std::unique_ptr<int>> bad = failure{error(errc::timeout, "late")};
    CHECK(!bad.has_value());
    CHECK(bad.error().kind() == errc::timeout);
    CHECK_THROWS_AS(static_cast<void>(std::move(bad).value()), error);
  }

  TEST_CASE("a result of nothing, and one of a kernel's error code") {
    CHECK(result<void>().has_value());
    CHECK_NOTHROW(result<void>().value());
    CHECK_THROWS_AS((result<void>(failure{error(errc::timeout, "late")}).value()), error);
    io_result<int> failed = failure{system_code(EPIPE)};
    REQUIRE(!failed);
    CHECK(failed.error() == system_code(EPIPE));
    CHECK_THROWS_AS(static_cast<void>(std::move(failed).value()), std::system_error);
  }
}
