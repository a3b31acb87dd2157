#include <headrace/device/device.hpp>

#include <doctest/doctest.h>

using namespace headrace;

TEST_SUITE("unit") {
  TEST_CASE("a device is read as it is written") {
    for (const device one : {cpu(), cuda(), cuda(1), cuda(4294967295U)}) {
      CHECK(parse_device(one.to_string()).value() == one);
    }
    CHECK(parse_device("cuda").value() == cuda(0));
    CHECK(cuda(1).to_string() == "cuda:1");
  }

  TEST_CASE("what is not a device is refused with what is") {
    for (const char* const text :
         {"", "CPU", "cpu:0", "cuda:", "cuda:-1", "cuda:1x", "cuda: 1", "cuda:4294967296", "gpu"}) {
      const auto parsed = parse_device(text);
      REQUIRE_FALSE(parsed);
      CHECK(parsed.error().kind() == errc::invalid_request);
      CHECK(parsed.error().message().find("cpu, cuda or cuda:N") != std::string::npos);
    }
  }
}
